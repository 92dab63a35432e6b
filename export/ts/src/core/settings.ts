// Settings of a training, and what it came to.

import type { Training } from "./bundle.js";
import { own, type Table } from "./checks.js";

/** Settings of training. Undefined: the manifest's value. A limit of 0: no limit. */
export interface Settings {
  epochs?: number | undefined;
  batchSize?: number | undefined;
  lr?: number | undefined;
  momentum?: number | undefined;
  maxSteps?: number | undefined;
  maxSeconds?: number | undefined;
  memoryBytes?: number | undefined;
  /** Undefined: that of the training before, which a state has too, or 0. */
  seed?: number | bigint | undefined;
  /** False keeps the order of the samples. */
  shuffle?: boolean | undefined;
  /** The number of a graph, instead of drawing one for each step. */
  graph?: number | undefined;
  /** True counts every class as present. */
  everyClass?: boolean | undefined;
  augment?: string | undefined;
}

/** What training came to; `diverged`: a further step computed NaN or infinity, and the last sound tensors are kept. */
export interface Run {
  losses: number[];
  seconds: number;
  stopped: boolean;
  diverged: boolean;
  /** Which step diverged, and what it computed; empty if none did. */
  problem: string;
}

/** Return settings with the values of a tier's entry where they have none. */
export function settled(how: Settings, entry: Table, table: Training): Required<Settings> {
  const budget = (own(entry, "budget") ?? {}) as { round_s?: number | null; memory_bytes?: number | null };
  return {
    epochs: how.epochs ?? table.epochs, batchSize: how.batchSize ?? table.batch_size, lr: how.lr ?? table.lr, momentum: how.momentum ?? table.momentum,
    maxSteps: how.maxSteps ?? Infinity, maxSeconds: how.maxSeconds ?? budget.round_s ?? 0, memoryBytes: how.memoryBytes ?? budget.memory_bytes ?? 0,
    seed: how.seed ?? 0, shuffle: how.shuffle ?? true, graph: how.graph ?? -1, everyClass: how.everyClass ?? false,
    augment: how.augment ?? String(own(table, "augment") ?? "none"),
  };
}

/** Return the number of steps on so many samples if no limit of time ends training. */
export const plannedSteps = (how: Required<Settings>, samples: number): number => Math.min(how.epochs * Math.ceil(samples / how.batchSize), how.maxSteps);

/** Called with the number of a step, its loss, and the seconds of all steps; false stops. */
export type OnStep = (done: number, loss: number, seconds: number) => Promise<boolean | void>;
