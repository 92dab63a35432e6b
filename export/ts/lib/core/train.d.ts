import type { Bundle } from "./bundle.js";
import type { Store } from "./progress.js";
import type { State } from "./state.js";
import type { OnStep, Settings } from "./settings.js";
import { type Samples } from "./trainer.js";
/**
 * Train a tier on labelled samples and return the new state. A `state` of an earlier round has the personal tensors; one of the same bundle is
 * trained further: with the same seed and samples, to the same bits as in one training. Training stops before a step that would exceed the time
 * limit; the finished steps count. With a `store`, a training that was interrupted continues after the last step that was stored.
 */
export declare function train(bundle: Bundle, label: string, data: Samples, how?: Settings, state?: State | null, client?: string, onStep?: OnStep, store?: Store | null): Promise<State>;
