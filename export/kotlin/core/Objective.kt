// The term that an objective adds to the loss.
package edgefl

/**
 * μ/2·‖w − w₀‖² + ⟨s, w⟩ over the parameters that travel. w₀ are the weights at the start of the round; s is −h for `dyn` and c − cₖ for
 * `scaffold`. After K steps at rate η, h ← h − μ(w − w₀) and cₖ⁺ = cₖ − c + (w₀ − w)/(K·η) stay on the device; `scaffold` sends cₖ⁺ − cₖ.
 * `before` is what the device stores of a tensor: h or cₖ before this round.
 */
class Objective(private val training: Training, given: Map<String, Tensor>, before: (String) -> Tensor?) {
    private val names = if (training.objective == "none") listOf() else training.trained.keys - training.personal.toSet()
    private val start = names.associateWith(given::getValue)
    private val control = names.associateWith { given["control:$it"] ?: Tensor.zeros(start.getValue(it)) }
    private val before = names.associateWith { before(it) ?: Tensor.zeros(start.getValue(it)) }

    /** The inputs `f.start.NAME` (w₀) and `f.shift.NAME` (s) of the training graphs. */
    fun feeds(): Map<String, Tensor> {
        val sign = if (training.objective == "scaffold") 1f else 0f
        val shifts = names.associate { name ->
            "f.shift.$name" to combined(control.getValue(name), before.getValue(name)) { control, before -> sign * control - before }
        }
        return names.associate { "f.start.$it" to start.getValue(it) } + shifts
    }

    /** What the device stores and sends beside weights; `travelled` is K·η, the sum of the steps' rates. */
    fun finish(after: Map<String, Tensor>, travelled: Double): Map<String, Tensor> {
        val found = linkedMapOf<String, Tensor>()
        if (training.objective !in setOf("dyn", "scaffold")) return found
        for (name in names) {
            val had = before.getValue(name)
            val moved = combined(after.getValue(name), start.getValue(name), Float::minus)
            val kept = if (training.objective == "scaffold") {
                val rest = combined(had, control.getValue(name), Float::minus)
                combined(rest, moved) { one, way -> one - way / travelled.toFloat() }.also { found["control:$name"] = combined(it, had, Float::minus) }
            } else {
                combined(had, moved) { one, way -> one - training.strength.toFloat() * way }
            }
            found["memory:$name"] = kept
            found["before:$name"] = had
        }
        return found
    }

    private fun combined(one: Tensor, other: Tensor, how: (Float, Float) -> Float): Tensor {
        val (left, right) = one.floats() to other.floats()
        return Tensor.of(one.shape, FloatArray(left.size) { how(left[it], right[it]) })
    }
}
