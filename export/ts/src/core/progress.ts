// Progress of a training: what is stored of it after some steps, so that an interrupted one continues to the same bits.

import type { Order } from "./order.js";
import { InputError, firstLine } from "./problems.js";
import { readTensors, writeTensors } from "./safetensors.js";
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

export class Checkpoint {
  /** `key` is a hash of what is trained; progress of anything else is refused. */
  constructor(private readonly store: Store, private readonly key: string) {}

  /** Bring back the last steps that were stored, and return the losses of all; none if nothing is stored. */
  restored(trainer: Changing, order: Order): number[] {
    const { where } = this.store;
    const content = this.store.read();
    if (!content) return [];
    let found: ReturnType<typeof readTensors>;
    try {
      found = readTensors(content);
      if (!found.tensors.has("losses")) throw new Error("it has no losses");
    } catch (error) {
      throw new InputError(`${where}: not the progress of a training (${firstLine(error)}); delete it to begin anew`);
    }
    const { tensors, metadata } = found;
    if (metadata.key !== this.key) throw new InputError(`${where}: of another training: bundle, tier, data or settings differ; delete it to begin anew`);
    trainer.restore(tensors, where);
    order.move(metadata.order ?? "", where);
    return Array.from(tensors.get("losses")?.data ?? [], Number);
  }

  /** Write all that changes after so many steps, if it is time to. */
  stored(trainer: Changing, order: Order, losses: readonly number[]): void {
    if (losses.length % this.store.every) return;
    const tensors: Values = new Map([...trainer.changing()]);
    tensors.set("losses", { type: "float64", dims: [losses.length], data: Float64Array.from(losses) });
    this.store.write(writeTensors(tensors, { key: this.key, order: order.place() }));
  }
}
