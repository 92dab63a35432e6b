export type Json = null | boolean | number | string | Json[] | Table;
export interface Table {
    [key: string]: Json;
}
export type Kind = "int" | "number" | "str" | "bool" | "list" | "dict";
/** A value is not what a manifest may hold; the message names key, value and expectation. */
export declare class CheckError extends Error {
}
export declare const isTable: (value: unknown) => value is Table;
/** Return the value of a table's own key, undefined without one: names such as "constructor" are keys like others. */
export declare function own(table: Table, key: string): Json | undefined;
/** Return `manifest` with the defaults of missing keys; CheckError unless it has what the client relies on, except `train`. */
export declare function checkManifest(manifest: unknown): Table;
/** Return a tier's `train` with the defaults of missing keys; CheckError unless it says how the tier is trained. */
export declare function checkTraining(table: unknown): Table;
/** Throw a CheckError unless the limits in a tier's `budget` are numbers or missing. */
export declare function checkBudget(budget: unknown): asserts budget is Table;
/** Return `given` with the `defaults` of missing keys; it must have all `keys` with values of the given kinds. */
export declare function requireKeys(given: unknown, keys: Record<string, Kind>, where?: string, defaults?: Table): Table;
/** Return a shape as the Python client's messages show it. */
export declare const tuple: (dims: readonly number[]) => string;
/** Return a value as the Python client's messages show it. */
export declare function shown(value: unknown): string;
