import type { Files } from "../core/bundle.js";
import type { DeviceKey } from "../core/state.js";
import type { Claim, Pins } from "../core/trust.js";
/** Return the system's words for an error. */
export declare function reason(error: unknown): string;
/** Return a file's content; InputError that ends with `expected` if it cannot be read. */
export declare function contentOf(path: string, expected: string): Uint8Array<ArrayBuffer>;
/** Return the files of the bundle in a folder. */
export declare function bundleFiles(folder: string): Files;
/** Return what the bundle in a folder says about its publisher. */
export declare function claimOf(folder: string): Claim;
/** Return the folder of this user for keys, which the Python client uses too: `edgefl` in $XDG_CONFIG_HOME or ~/.config. */
export declare function configFolder(): string;
/** Where the keys of publishers are that this device trusts. */
export declare const filePins: () => Pins;
/** Where the highest round of each publisher and line is. */
export declare const fileRounds: () => Pins;
/** Write a file, whole or not at all. */
export declare function write(path: string, content: Uint8Array): void;
/** Return the key in a PEM file; InputError if there is none, or others may read it. */
export declare function deviceKey(path: string): DeviceKey;
/** Return the key in a PEM file, which is made if there is none; only its owner may read it. */
export declare function madeKey(path: string): DeviceKey;
