import { type Given } from "./arguments.js";
export interface Output {
    out(text: string): void;
    error(text: string): void;
    watch(what: string | null): void;
}
/** Run one command; errors are thrown. */
export declare function run(given: Given, say: Output): Promise<void>;
