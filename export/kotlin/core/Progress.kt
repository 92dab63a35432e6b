// Progress of a training: a file from which an interrupted one continues, to the same bits as without an interruption.
package edgefl

import java.io.File

private const val MOST_PROGRESS_BYTES = 1L shl 36

/** Where progress is stored, and after how many steps again. */
class Checkpoint(val file: File, val every: Int = 10)

/** The progress of one training: `key` is a hash of what is trained; progress of anything else is refused. */
class Progress(private val checkpoint: Checkpoint, private val key: String) {
    /** Brings back the last steps that were stored, and returns the losses of all; none if there is no such file. */
    fun restored(steps: Steps, order: Order): List<Float> {
        val file = checkpoint.file
        if (!file.exists()) return listOf()
        val (found, losses) = try {
            val read = Safetensors.read(readRegular(file, MOST_PROGRESS_BYTES, "the progress of a training"), "$file")
            read to read.tensors.floats("losses", "$file")
        } catch (error: InputError) {
            throw InputError("$file: not the progress of a training (${error.message}); delete it to begin anew")
        }
        if (found.about["key"] != key) throw InputError("$file: of another training: bundle, tier, data or settings differ; delete it to begin anew")
        steps.restore(found.tensors, "$file")
        order.move(found.about["order"].orEmpty(), "$file")
        return losses.toList()
    }

    /** Writes all that changes after so many steps, if it is time to. */
    fun store(steps: Steps, order: Order, losses: List<Float>) {
        if (losses.size % checkpoint.every != 0) return
        val tensors = steps.changing() + ("losses" to Tensor.of(listOf(losses.size), losses.toFloatArray()))
        write(checkpoint.file, Safetensors(tensors, mapOf("key" to key, "order" to order.place)).toBytes())
    }
}
