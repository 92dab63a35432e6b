/** Training diverged, or onnxruntime failed; no file was written. */
export declare class ClientError extends Error {
    readonly exitCode: number;
}
/** An input is wrong: a file, a bundle or an argument. */
export declare class InputError extends ClientError {
    readonly exitCode: number;
}
/** A limit of memory or time is too small: `need` and `have` are bytes or seconds. */
export declare class BudgetError extends ClientError {
    readonly need: number;
    readonly have: number;
    readonly exitCode: number;
    constructor(message: string, need: number, have: number);
}
/** Nobody whom this device trusts signed the bundle; `key` signed it, null if that is not known. */
export declare class UntrustedError extends InputError {
    readonly key: string | null;
    readonly trusted: readonly string[];
    constructor(message: string, key: string | null, trusted: readonly string[]);
}
/** Return the first line of an error's message, or its name. */
export declare function firstLine(error: unknown): string;
/** Return `text` without characters that would change a terminal, such as escape codes in the name of a class. */
export declare function printable(text: string): string;
/** Say what went wrong in one line, and return the exit status. */
export declare function failed(error: unknown, say: (line: string) => void): number;
