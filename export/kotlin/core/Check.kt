// A bundle is its own test: every tier has references of what it computes.
package edgefl

import kotlin.math.abs
import kotlin.math.max

/** How far a tier is from its references, each as a share of what is allowed: at most 1 on a sound device. Null: it is not trained. */
class Apart(val tier: String, val outputs: Double, val losses: Double?, val weights: Double?) {
    val isRight: Boolean get() = listOf(outputs, losses ?: 0.0, weights ?: 0.0).all { it <= 1 }
}

/** Compares every tier with its references: outputs, and the losses and tensors of three steps of its first training graph. */
fun check(bundle: Bundle): List<Apart> = bundle.manifest.tiers.map { tier ->
    val reference = bundle.tensors(tier.reference)
    val logits = reference.floats("logits", tier.reference)
    val found = infer(bundle, tier.label, Samples.of(bundle.manifest, reference - "logits", raw = false, where = "${tier.reference}: ")).floats()
    val outputs = largest(logits, found) / (1e-4 * max(1.0, logits.maxOf { abs(it.toDouble()) }))
    val training = tier.training() ?: return@map Apart(tier.label, outputs, null, null)
    val (losses, weights) = afterThreeSteps(bundle, tier.label, training)
    Apart(tier.label, outputs, losses, weights)
}

private fun afterThreeSteps(bundle: Bundle, label: String, training: Training): Pair<Double, Double> {
    val stored = bundle.tensors(training.reference)
    val given = stored.filterKeys { it != "losses" && !it.startsWith("after:") }
    val batch = Samples.of(bundle.manifest, given, raw = false, where = "${training.reference}: ")
    val y = batch.y ?: throw InputError("${training.reference}: y: missing")
    val data = batch.inputs + ("y" to y)
    return Steps(bundle, training, firstFeeds(bundle, training), data).use { steps ->
        val losses = stored.floats("losses", training.reference).take(3)
            .mapIndexed { at, loss -> abs(steps.step(data, 0, at + 1) / loss.toDouble() - 1) / 1e-3 }.max()
        // Adam divides by the gradient: a step is as long for one that is only rounding.
        val slack = 1e-5 + if (training.optimizer == "adam") 6 * training.lr else 0.0
        losses to apart(steps.tensors(), stored, slack)
    }
}

private fun firstFeeds(bundle: Bundle, training: Training): Map<String, Tensor> {
    val given = bundle.parameters(training)
    val classes = bundle.manifest.classes
    val present = Tensor(Kind.BOOL, listOf(classes), ByteArray(classes) { 1 })
    val numbers = mapOf("lr" to Tensor.scalar(training.lr.toFloat()), "beta" to Tensor.scalar(training.momentum.toFloat()), "present" to present)
    return byRole(training, given) + Objective(training, given) { null }.feeds() + numbers
}

/** `stored` has every k-th value of each tensor after the steps, at most 256 of each. */
private fun apart(tensors: Map<String, Tensor>, stored: Map<String, Tensor>, slack: Double): Double =
    stored.keys.filter { it.startsWith("after:") }.maxOfOrNull { key ->
        val now = tensors.floats(key.removePrefix("after:"), key)
        val every = max(1, (now.size + 255) / 256)
        val wanted = stored.floats(key, "reference")
        largest(wanted, now.filterIndexed { i, _ -> i % every == 0 }.toFloatArray()) / (1e-3 * wanted.maxOf { abs(it.toDouble()) } + slack)
    } ?: 0.0

/** The largest difference; infinite if there are not as many values, or one is NaN. */
private fun largest(one: FloatArray, other: FloatArray): Double {
    if (one.size != other.size) return Double.POSITIVE_INFINITY
    return one.indices.maxOf { i -> abs(one[i].toDouble() - other[i].toDouble()).let { if (it.isNaN()) Double.POSITIVE_INFINITY else it } }
}
