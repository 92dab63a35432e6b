// Settings of a training, and what it came to.
import { own } from "./checks.js";
/** Return settings with the values of a tier's entry where they have none. */
export function settled(how, entry, table) {
    const budget = (own(entry, "budget") ?? {});
    return {
        epochs: how.epochs ?? table.epochs, batchSize: how.batchSize ?? table.batch_size, lr: how.lr ?? table.lr, momentum: how.momentum ?? table.momentum,
        maxSteps: how.maxSteps ?? Infinity, maxSeconds: how.maxSeconds ?? budget.round_s ?? 0, memoryBytes: how.memoryBytes ?? budget.memory_bytes ?? 0,
        seed: how.seed ?? 0, shuffle: how.shuffle ?? true, graph: how.graph ?? -1, everyClass: how.everyClass ?? false,
        augment: how.augment ?? String(own(table, "augment") ?? "none"),
    };
}
/** Return the number of steps on so many samples if no limit of time ends training. */
export const plannedSteps = (how, samples) => Math.min(how.epochs * Math.ceil(samples / how.batchSize), how.maxSteps);
