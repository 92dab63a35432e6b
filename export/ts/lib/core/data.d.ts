import { type Table } from "./checks.js";
import { type Inflate, type NpArray } from "./npz.js";
import { type Values } from "./values.js";
/**
 * Return the samples in the content of an .npz file, which messages call `path`: `x` and `y`, or the arrays of several inputs and `y`.
 * InputError if they are wrong, or if labels are missing although `labels` asks for them.
 */
export declare function readSamples(path: string, content: Uint8Array<ArrayBuffer>, manifest: Table, labels: boolean, inflate: Inflate): Promise<Values>;
/** Return the samples among arrays by name, checked and prepared, by the inputs of the graphs. */
export declare function samplesOf(path: string, arrays: Map<string, NpArray>, manifest: Table, labels: boolean): Values;
