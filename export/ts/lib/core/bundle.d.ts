import type { InferenceSession } from "onnxruntime-common";
import { type Table } from "./checks.js";
import { type Host, type Values } from "./values.js";
/** The files of a bundle, wherever they are. */
export interface Files {
    /** Return the content of a file; InputError if it is missing, a link, or not of `bytes` bytes (undefined: any number). */
    read(path: string, bytes?: number): Promise<Uint8Array<ArrayBuffer>>;
    /** What messages call a file, or the bundle without a path. */
    where(path?: string): string;
    /** What onnxruntime opens instead of a graph's content if its weights are in other files; undefined: it gets their contents. */
    source?(path: string): string;
}
/** A tier's entry `train`, with the types that are checked. */
export type Training = Table & {
    graphs: string[];
    predict: string;
    parameters: string;
    optimizer: string;
    lr: number;
    momentum: number;
    batch_size: number;
    epochs: number;
    trained: Record<string, number[]>;
    statistics: Record<string, number[]>;
    frozen: Record<string, number[]>;
    upload: Record<string, number[]>;
    personal: string[];
    objective: {
        name: string;
        strength: number;
    };
    present: boolean;
    no_update: string;
};
/** Return the bundle whose manifest `files` have, after checks of its own hash and values; `check` sees the bytes first. */
export declare function readBundle(files: Files, host: Host, check?: (manifest: Uint8Array<ArrayBuffer>) => Promise<void>): Promise<Bundle>;
export declare class Bundle {
    readonly files: Files;
    readonly manifest: Table;
    readonly host: Host;
    constructor(files: Files, manifest: Table, host: Host);
    get tiers(): Table[];
    /** Return the manifest's entry of a tier; InputError if there is none. */
    tier(label: string): Table;
    /** Return the entry `train` of a tier; InputError if the bundle is for inference only. */
    training(label: string): Training;
    /** Return the content of a file of the bundle; InputError if it is not listed, missing, a link or changed. */
    content(path: string): Promise<Uint8Array<ArrayBuffer>>;
    /** Return a session for the graph at `path`; InputError if a file was changed, or onnxruntime does not accept the graph. */
    session(path: string): Promise<InferenceSession>;
    /** Return the first values of a tier's tensors, with the server's control variates under `control:NAME`. */
    parameters(label: string): Promise<Values>;
    /** Return the tensors in a safetensors file of the bundle. */
    tensors(path: string): Promise<Values>;
}
/** An input of the graphs. */
export interface Input {
    shape: number[];
    dtype: string;
    preprocessing: Table;
}
/** Return input of the graphs → its shape, dtype and preprocessing: `x`, or `x.NAME` for each of several. */
export declare function inputsOf(manifest: Table): Record<string, Input>;
/** Return the result of a check; turn a failed one into an InputError that begins with `where`. */
export declare function refused<T>(where: string, check: () => T): T;
