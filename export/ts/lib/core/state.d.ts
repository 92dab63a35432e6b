import { type Bundle } from "./bundle.js";
import type { Host, Values } from "./values.js";
export interface State {
    /** Tensors by name. An objective adds `memory:NAME` and `before:NAME`, its tensors after and before the round, and `control:NAME`, which it sends. `now:INPUT` is what the optimizer and dropout continue with. */
    readonly tensors: Values;
    readonly about: Readonly<Record<string, string>>;
    readonly losses: readonly number[];
    readonly seconds: number;
    /** Why a training shuffled the samples anew, else nothing. */
    readonly note: string;
}
/** Begins the names of what a state has of the optimizer and of dropout, so that a training continues. */
export declare const NOW = "now:";
/** A device's key: the base64 of its public half, and what signs. */
export interface DeviceKey {
    readonly public: string;
    /** Return the base64 of the signature. */
    sign(content: Uint8Array<ArrayBuffer>): Promise<string>;
}
export declare const stateBytes: ({ tensors, about }: State) => Uint8Array<ArrayBuffer>;
/** Return the state in a file's content, which messages call `where`; InputError if it holds none. */
export declare function readState(content: Uint8Array<ArrayBuffer>, where: string): State;
export declare const isOf: (state: State, bundle: Bundle) => boolean;
/** Return the update file of a state: only the tensors that the server aggregates, signed with `key` unless it is null. */
export declare function update(host: Pick<Host, "sha256">, state: State, key?: DeviceKey | null): Promise<Uint8Array<ArrayBuffer>>;
/** Return the metadata `about` of an update with the device's key and its signature of all metadata and tensors. */
export declare function signed(host: Pick<Host, "sha256">, about: Record<string, string>, tensors: Values, key: DeviceKey): Promise<Record<string, string>>;
/** Return the SHA-256 of tensors by the bytes of their names: name, zero byte, shape as 2,3, zero byte, float32 values. */
export declare function contentSha256(host: Pick<Host, "sha256">, tensors: Values): Promise<string>;
/** Return the text of a request to enrol this device under `name`: JSON, signed with its key. */
export declare function enrolment(name: string, key: DeviceKey): Promise<string>;
