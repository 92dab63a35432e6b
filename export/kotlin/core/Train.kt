// The loop of training.
package edgefl

import java.security.SecureRandom
import kotlin.math.ceil

/**
 * Settings of training. Null: the manifest's value; of `seed`: that of the state that is trained further, or 0; of `maxSteps`: no limit.
 * A `maxSeconds` of 0: no limit.
 */
class Settings(
    val epochs: Int? = null, val batchSize: Int? = null, val lr: Double? = null, val seed: ULong? = null,
    val maxSeconds: Double? = null, val maxSteps: Int? = null,
)

/** The number of steps of a round with the manifest's settings. */
fun plannedSteps(training: Training, samples: Int): Int = training.epochs * ((samples + training.batchSize - 1) / training.batchSize)

/**
 * Trains a tier and returns the new state. A `state` of an earlier round has the personal tensors; one of the same bundle is trained
 * further: with the same seed and samples, to the same bits as in one training, and otherwise [State.note] says what differs.
 *
 * `onStep` gets the number of a step and its loss. If it returns false, training ends there, and the state continues later. With a
 * `checkpoint`, a training that was killed continues after the last step that was stored; the caller deletes the file at the end.
 * Throws BudgetError if the first step takes longer than all may, ClientError if training diverges, InputError if an input is wrong.
 */
fun train(
    bundle: Bundle, label: String, samples: Samples, how: Settings = Settings(), state: State? = null, client: String = "",
    checkpoint: Checkpoint? = null, onStep: (Int, Float) -> Boolean = { _, _ -> true },
): State {
    val y = samples.y ?: throw InputError("y: no labels, expected one per sample: training needs them")
    val run = Run(bundle, label, samples.inputs + ("y" to y), how, state)
    return run.steps.use { run.toState(run.losses(checkpoint, onStep), client) }
}

private class Run(
    private val bundle: Bundle, private val label: String, private val data: Map<String, Tensor>, private val how: Settings, state: State?,
) {
    private val training = bundle.training(label)
    private val manifest = bundle.manifest
    private val count = data.getValue("y").shape[0]
    private val given = bundle.parameters(training)
    private val held = currentTensors(bundle, label, given, state)
    private val before = state?.takeIf { it.isOf(bundle) }
    private val said = before?.about.orEmpty()
    private val objective = Objective(training, given) { state?.tensors?.get("${if (before != null) "before" else "memory"}:$it") }
    private val content = contentSha256(data)
    private val had = said["order"]?.let(::partsOf).orEmpty()
    private val seed = how.seed ?: seedOf(had.firstOrNull() ?: "0")
    private val note = whatDiffers()
    private val batchSize = how.batchSize ?: training.batchSize
    private val epochs = how.epochs ?: training.epochs
    private val lr = how.lr ?: training.lr
    private val maxSeconds = how.maxSeconds ?: training.roundSeconds ?: 0.0
    private val earlier = said["steps"]?.toLong() ?: 0
    private val labels = if (manifest.targetShape == null) data.getValue("y").longs().toSet() else setOf()
    private val order = Order(count, batchSize, seed).also { if (said.isNotEmpty() && note.isEmpty()) it.move(said.getValue("order")) }
    val steps = Steps(bundle, training, feeds(), data)

    private fun feeds(): Map<String, Tensor> {
        val dropout = (seed * 40503u + earlier.toULong()) % 8388608u
        val numbers = mapOf("lr" to lr, "beta" to training.momentum, "seed" to dropout.toDouble()).mapValues { Tensor.scalar(it.value.toFloat()) }
        val present = Tensor(Kind.BOOL, listOf(manifest.classes), ByteArray(manifest.classes) { if (it.toLong() in labels) 1 else 0 })
        val moving = before?.tensors.orEmpty().filterKeys { it.startsWith(NOW) && !(note.isNotEmpty() && it == "${NOW}seed") }
        val feeds = byRole(training, held) + objective.feeds() + numbers + moving.mapKeys { it.key.removePrefix(NOW) }
        return if (training.present) feeds + ("present" to present) else feeds
    }

    fun losses(checkpoint: Checkpoint?, onStep: (Int, Float) -> Boolean): List<Float> {
        val progress = checkpoint?.let { Progress(it, key()) }
        val losses = progress?.restored(steps, order).orEmpty().toMutableList()
        val restored = losses.size
        val started = System.nanoTime()
        var spent = 0.0
        val planned = minOf(epochs * ceil(count.toDouble() / batchSize).toLong(), how.maxSteps?.toLong() ?: Long.MAX_VALUE)
        // Stop if the next step would exceed the limit, should it take as long as the average step.
        while (losses.size < planned) {
            val taken = losses.size - restored
            if (maxSeconds > 0 && taken > 0 && spent * (taken + 1) / taken > maxSeconds) break
            val batch = batch()
            losses += steps.step(batch, order.graph(training.graphs.size), losses.size + 1)
            spent = (System.nanoTime() - started) / 1e9
            progress?.store(steps, order, losses)
            if (maxSeconds > 0 && losses.size == 1 && spent > maxSeconds)
                throw BudgetError("the first step took %.3g s, %.3g s are allowed for all".format(spent, maxSeconds))
            if (!onStep(losses.size, losses.last())) break
        }
        return losses
    }

    /** A hash of what is trained, and how. */
    private fun key(): String {
        val facts = listOf(manifest.sha256, label, "$epochs", "$batchSize", "$lr", "$seed", "${how.maxSteps}", order.place, content, contentSha256(held))
        return sha256(json(facts + said.map { (name, value) -> "$name=$value" }).toByteArray())
    }

    private fun batch(): Map<String, Tensor> {
        val index = order.batch()
        val batch = data.mapValues { it.value.rows(index) }
        if (training.flips) index.indices.filter { order.mirrored() }.forEach { batch["x"]?.mirror(it) }
        return batch
    }

    fun toState(losses: List<Float>, client: String): State {
        // One after the other: the same sum for two trainings as for one.
        val travelled = losses.fold(said["lr_sum"]?.toDouble() ?: 0.0) { sum, _ -> sum + lr }
        val stays = training.frozen.keys.filter { it in training.upload || it in training.personal }
        val tensors = steps.tensors() + stays.associateWith(held::getValue)
        val all = tensors + objective.finish(tensors, travelled) + steps.continued()
        for ((name, tensor) in all)
            if (!tensor.isFinite)
                throw ClientError("$name holds NaN or infinity after ${losses.size} steps: training diverged; a smaller learning rate may help")
        return State(all, about(losses.size, travelled, client), losses, note)
    }

    private fun about(taken: Int, travelled: Double, client: String): Map<String, String> {
        val about = linkedMapOf(
            "format" to "edgefl-state", "version" to "1", "bundle" to manifest.sha256, "round" to "${manifest.round}", "tier" to label,
            "samples" to "$count", "steps" to "${earlier + taken}", "lr_sum" to "$travelled", "upload" to json(training.upload),
            "client" to client.ifEmpty { said["client"] }.orEmpty().ifEmpty { hex(ByteArray(8).also(SecureRandom()::nextBytes)) },
            "no_update" to training.noUpdate, "order" to order.place, "data" to content,
        )
        bundle.expires?.let { about["deadline"] = it }
        if (training.labels) about["labels"] = (before?.labels.orEmpty() + labels).sorted().joinToString(",")
        return about
    }

    /** Why the order of samples of the state before does not continue; empty if it does, or if there is none. */
    private fun whatDiffers(): String {
        val of = when {
            said.isEmpty() -> ""
            had.isEmpty() -> "of an earlier version, without an order of samples"
            had[0] != "$seed" -> "of seed ${had[0]}, not $seed"
            else -> if (said["data"] == content) "" else "of other samples"
        }
        return if (of.isEmpty()) "" else "--state: $of: training shuffles the samples anew"
    }

    private fun seedOf(digits: String): ULong =
        digits.toULongOrNull() ?: throw InputError("--state: its seed has more than 64 bits, which this client does not draw by")
}
