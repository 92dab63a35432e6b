// Trains a tier on a device, from the samples to the state that stays there.

import type { Bundle } from "./bundle.js";
import { ClientError } from "./problems.js";
import type { Store } from "./progress.js";
import { checkInputs } from "./run.js";
import type { State } from "./state.js";
import type { OnStep, Settings } from "./settings.js";
import { type Samples, Trainer } from "./trainer.js";

/**
 * Train a tier on labelled samples and return the new state. A `state` of an earlier round has the personal tensors; one of the same bundle is
 * trained further: with the same seed and samples, to the same bits as in one training. Training stops before a step that would exceed the time
 * limit; the finished steps count. With a `store`, a training that was interrupted continues after the last step that was stored.
 */
export async function train(
  bundle: Bundle, label: string, data: Samples, how: Settings = {}, state: State | null = null, client = "", onStep?: OnStep, store: Store | null = null,
): Promise<State> {
  checkInputs(bundle.manifest, data);
  const trainer = await Trainer.create(bundle, label, state);
  try {
    const done = await trainer.run(data, how, undefined, onStep, store);
    if (done.diverged) throw new ClientError(`${done.problem}: training diverged; a smaller --lr may help`);
    return trainer.state(client, done);
  } finally {
    await trainer.release();
  }
}
