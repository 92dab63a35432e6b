import { type Data } from "./values.js";
/** An array of a file: `type` is NumPy's name of what it holds. */
export interface NpArray {
    readonly type: string;
    readonly shape: readonly number[];
    readonly data: Data;
}
/** Return deflated bytes as they were; an error if they are more than `mostBytes`. */
export type Inflate = (content: Uint8Array<ArrayBuffer>, mostBytes: number) => Promise<Uint8Array<ArrayBuffer>>;
/** The file is too large when it is unpacked. */
export declare class GrowthError extends Error {
}
/** Return name → array of a file's bytes. */
export declare function readNpz(bytes: Uint8Array<ArrayBuffer>, inflate: Inflate): Promise<Map<string, NpArray>>;
/** Return the array in an .npy file's bytes; an Error, which calls it `name`, if it is none. */
export declare function readNpy(bytes: Uint8Array<ArrayBuffer>, name: string): NpArray;
