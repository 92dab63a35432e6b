// The term that prox, dyn and scaffold add to the loss: μ/2·‖w − w₀‖² + ⟨s, w⟩ over the uploaded parameters.

import type { Training } from "./bundle.js";
import { type Value, type Values, mapped, zeros } from "./values.js";

const f = Math.fround;

/**
 * w₀ are the weights at the start of the round; s is −h for `dyn` and c − cₖ for `scaffold`. After K steps at rate η, h ← h − μ(w − w₀) and
 * cₖ⁺ = cₖ − c + (w₀ − w)/(K·η) stay on the device; `scaffold` sends cₖ⁺ − cₖ. All is float32, in the order of the Python client.
 */
export class Objective {
  private readonly terms: { name: string; start: Value; control: Value; before: Value }[];
  private readonly kind: string;
  private readonly strength: number;

  /** `given` are the bundle's tensors; `before(name)` is what the device kept of an earlier round. */
  constructor(table: Training, given: Values, before: (name: string) => Value | undefined) {
    this.kind = table.objective.name;
    this.strength = f(table.objective.strength);
    const names = this.kind === "none" ? [] : Object.keys(table.trained).filter((name) => !table.personal.includes(name));
    this.terms = names.flatMap((name) => {
      const start = given.get(name);
      return start ? [{ name, start, control: given.get(`control:${name}`) ?? zeros(start.dims), before: before(name) ?? zeros(start.dims) }] : [];
    });
  }

  /** Return the inputs `f.start.NAME` (w₀) and `f.shift.NAME` (s) of the training graphs. */
  feeds(): Values {
    const sign = this.kind === "scaffold" ? 1 : 0;
    return new Map(
      this.terms.flatMap(({ name, start, control, before }): [string, Value][] => [
        [`f.start.${name}`, start],
        [`f.shift.${name}`, mapped([control, before], (c = 0, kept = 0) => f(sign * c - kept))],
      ]),
    );
  }

  /** Return the tensors that the device keeps and sends besides weights; `travelled` is K·η, the sum of the steps' rates. */
  finish(after: Values, travelled: number): Values {
    const found: Values = new Map();
    for (const { name, start, control, before } of this.terms) {
      const now = after.get(name);
      if (!now || (this.kind !== "dyn" && this.kind !== "scaffold")) continue;
      const kept = mapped([now, start, control, before], (w = 0, w0 = 0, c = 0, was = 0) => {
        const moved = f(w - w0);
        return this.kind === "scaffold" ? f(f(was - c) - f(moved / f(travelled))) : f(was - f(this.strength * moved));
      });
      if (this.kind === "scaffold") found.set(`control:${name}`, mapped([kept, before], (k = 0, was = 0) => f(k - was)));
      found.set(`memory:${name}`, kept).set(`before:${name}`, before);
    }
    return found;
  }
}
