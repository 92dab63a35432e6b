import { type Value, type Values } from "./values.js";
/** Return the tensors and the metadata of a file's bytes; throws an Error where they are not what the format says. */
export declare function readTensors(bytes: Uint8Array<ArrayBuffer>): {
    tensors: Values;
    metadata: Record<string, string>;
};
/** Return the bytes of a file with `tensors` and `metadata`. */
export declare function writeTensors(tensors: ReadonlyMap<string, Value>, metadata: Record<string, string>): Uint8Array<ArrayBuffer>;
