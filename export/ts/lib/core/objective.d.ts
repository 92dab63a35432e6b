import type { Training } from "./bundle.js";
import { type Value, type Values } from "./values.js";
/**
 * w₀ are the weights at the start of the round; s is −h for `dyn` and c − cₖ for `scaffold`. After K steps at rate η, h ← h − μ(w − w₀) and
 * cₖ⁺ = cₖ − c + (w₀ − w)/(K·η) stay on the device; `scaffold` sends cₖ⁺ − cₖ. All is float32, in the order of the Python client.
 */
export declare class Objective {
    private readonly terms;
    private readonly kind;
    private readonly strength;
    /** `given` are the bundle's tensors; `before(name)` is what the device kept of an earlier round. */
    constructor(table: Training, given: Values, before: (name: string) => Value | undefined);
    /** Return the inputs `f.start.NAME` (w₀) and `f.shift.NAME` (s) of the training graphs. */
    feeds(): Values;
    /** Return the tensors that the device keeps and sends besides weights; `travelled` is K·η, the sum of the steps' rates. */
    finish(after: Values, travelled: number): Values;
}
