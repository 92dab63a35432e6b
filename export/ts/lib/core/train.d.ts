import type { Bundle } from "./bundle.js";
import type { State } from "./state.js";
import { type Samples, type Settings } from "./trainer.js";
/**
 * Train a tier on labelled samples and return the new state. A `state` of an earlier round has the personal tensors; one of the same bundle is
 * trained further. Training stops before a step that would exceed the time limit; the finished steps count.
 */
export declare function train(bundle: Bundle, label: string, data: Samples, how?: Settings, state?: State | null, client?: string): Promise<State>;
