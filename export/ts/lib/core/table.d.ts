import { type Table } from "./checks.js";
import { type Values } from "./values.js";
/** Return the samples in the content of an .npy file, with those of a file y.npy as labels; null: there is none. */
export declare function readArray(path: string, content: Uint8Array<ArrayBuffer>, labels: {
    path: string;
    content: Uint8Array<ArrayBuffer>;
} | null, manifest: Table, needed: boolean): Values;
/** Return the samples in the content of a CSV: a column is a feature, except one that `LABELS` names, of the names or numbers of classes, or of targets. */
export declare function readTable(path: string, content: Uint8Array<ArrayBuffer>, manifest: Table, needed: boolean): Values;
