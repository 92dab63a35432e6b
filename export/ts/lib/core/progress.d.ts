import type { Order } from "./order.js";
import type { Value, Values } from "./values.js";
/** Where progress is stored, which messages call `where`, and after how many steps again. */
export interface Store {
    readonly where: string;
    readonly every: number;
    /** Return the content; null if there is none. */
    read(): Uint8Array<ArrayBuffer> | null;
    /** Replace the content, whole or not at all. */
    write(content: Uint8Array): void;
}
/** What changes while a network is trained. */
export interface Changing {
    changing(): [string, Value][];
    restore(values: Values, where: string): void;
}
export declare class Checkpoint {
    private readonly store;
    private readonly key;
    /** `key` is a hash of what is trained; progress of anything else is refused. */
    constructor(store: Store, key: string);
    /** Bring back the last steps that were stored, and return the losses of all; none if nothing is stored. */
    restored(trainer: Changing, order: Order): number[];
    /** Write all that changes after so many steps, if it is time to. */
    stored(trainer: Changing, order: Order, losses: readonly number[]): void;
}
