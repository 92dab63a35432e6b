// safetensors: eight bytes with the length of a JSON header, the header, the tensors' bytes, one after the other.
package edgefl

import java.nio.ByteBuffer
import java.nio.ByteOrder

class Safetensors(val tensors: Map<String, Tensor>, val about: Map<String, String> = mapOf()) {
    /** The content of a file; the tensors begin at a multiple of 8 bytes. */
    fun toBytes(): ByteArray {
        val header = linkedMapOf<String, Any?>()
        if (about.isNotEmpty()) header["__metadata__"] = about
        var end = 0
        for ((name, tensor) in tensors) {
            val begin = end
            end += tensor.bytes.size
            header[name] = linkedMapOf("dtype" to tensor.kind.name, "shape" to tensor.shape, "data_offsets" to listOf(begin, end))
        }
        var text = json(header).toByteArray()
        text += ByteArray((8 - text.size % 8) % 8) { ' '.code.toByte() }
        val file = ByteBuffer.allocate(8 + text.size + end).order(ByteOrder.LITTLE_ENDIAN)
        file.putLong(text.size.toLong()).put(text)
        tensors.values.forEach { file.put(it.bytes) }
        return file.array()
    }

    companion object {
        /** Reads a file's content; InputError, which begins with `where`, if it is not what the format says. */
        fun read(content: ByteArray, where: String): Safetensors {
            val length = if (content.size < 8) -1 else ByteBuffer.wrap(content).order(ByteOrder.LITTLE_ENDIAN).long
            if (length !in 0..content.size - 8L) throw InputError("$where: not a safetensors file (shorter than its header)")
            val header = Table.of(parsed(content.copyOfRange(8, 8 + length.toInt()), where), "$where: not a safetensors file: ")
            val data = content.copyOfRange(8 + length.toInt(), content.size)
            val spans = mutableListOf<Pair<Int, Int>>()
            val tensors = (header.keys - "__metadata__").associateWith { tensor(header.table(it), data, spans) }
            val end = spans.sortedWith(compareBy({ it.first }, { it.second })).fold(0) { at, (begin, end) -> if (begin == at) end else -1 }
            if (end != data.size) throw InputError("$where: not a safetensors file (its tensors do not follow each other to its end)")
            val about = if ("__metadata__" in header) header.table("__metadata__") else Table(mapOf(), "")
            return Safetensors(tensors, about.keys.associateWith(about::text))
        }

        private fun tensor(entry: Table, data: ByteArray, spans: MutableList<Pair<Int, Int>>): Tensor {
            val dtype = entry.text("dtype")
            val kind = Kind.entries.find { it.name == dtype } ?: throw entry.wrong("dtype", "one of ${Kind.entries.joinToString()}")
            val shape = entry.shape("shape")
            val (begin, end) = entry.shape("data_offsets").takeIf { it.size == 2 } ?: throw entry.wrong("data_offsets", "two places")
            val bytes = shape.fold(kind.size.toLong()) { product, size -> product * size }
            if (end > data.size || (end - begin).toLong() != bytes) throw entry.wrong("data_offsets", "the $bytes bytes of its shape")
            spans += begin to end
            return Tensor(kind, shape, data.copyOfRange(begin, end))
        }
    }
}
