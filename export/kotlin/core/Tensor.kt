// Tensors: a kind of numbers, a shape, and their bytes, little-endian.
package edgefl

import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.security.MessageDigest

/** A kind of numbers by its name in a manifest; safetensors calls it by the name of the constant. */
enum class Kind(val label: String, val size: Int) {
    F32("float32", 4), F64("float64", 8), I64("int64", 8), I32("int32", 4), U16("uint16", 2), U8("uint8", 1), BOOL("bool", 1)
}

class Tensor(val kind: Kind, val shape: List<Int>, val bytes: ByteArray) {
    val count: Int get() = bytes.size / kind.size
    private val buffer = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN)

    fun floats() = FloatArray(bytes.size / 4).also { buffer.asFloatBuffer().get(it) }

    fun longs() = LongArray(bytes.size / 8).also { buffer.asLongBuffer().get(it) }

    /** Value `i` of any kind. */
    fun number(i: Int): Double = when (kind) {
        Kind.F32 -> buffer.getFloat(i * 4).toDouble()
        Kind.F64 -> buffer.getDouble(i * 8)
        Kind.I64 -> buffer.getLong(i * 8).toDouble()
        Kind.I32 -> buffer.getInt(i * 4).toDouble()
        Kind.U16 -> buffer.getChar(i * 2).code.toDouble()
        Kind.U8, Kind.BOOL -> (bytes[i].toInt() and 255).toDouble()
    }

    val isFinite: Boolean get() = when (kind) {
        Kind.F32 -> floats().all(Float::isFinite)
        Kind.F64 -> (0 until count).all { number(it).isFinite() }
        else -> true
    }

    /** The samples `index` of several. */
    fun rows(index: IntArray): Tensor {
        val row = bytes.size / maxOf(1, shape[0])
        val chosen = ByteArray(index.size * row)
        index.forEachIndexed { i, from -> bytes.copyInto(chosen, i * row, from * row, (from + 1) * row) }
        return Tensor(kind, listOf(index.size) + shape.drop(1), chosen)
    }

    /** Mirrors sample `i`, an image, left-right in place. */
    fun mirror(i: Int) {
        if (shape.size < 2) return
        val line = shape.last() * kind.size
        val sample = bytes.size / shape[0]
        for (start in i * sample until (i + 1) * sample step line) {
            val turned = bytes.copyOfRange(start, start + line)
            for (at in 0 until line step kind.size) turned.copyInto(bytes, start + line - at - kind.size, at, at + kind.size)
        }
    }

    companion object {
        fun of(shape: List<Int>, values: FloatArray) =
            Tensor(Kind.F32, shape, ByteArray(values.size * 4).also { ByteBuffer.wrap(it).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().put(values) })

        fun of(shape: List<Int>, values: LongArray) =
            Tensor(Kind.I64, shape, ByteArray(values.size * 8).also { ByteBuffer.wrap(it).order(ByteOrder.LITTLE_ENDIAN).asLongBuffer().put(values) })

        fun scalar(value: Float) = of(listOf(), floatArrayOf(value))

        fun zeros(like: Tensor) = Tensor(like.kind, like.shape, ByteArray(like.bytes.size))
    }
}

/** The values of a tensor; InputError, which begins with `where`, unless there is one of that name, of float32. */
fun Map<String, Tensor>.floats(name: String, where: String): FloatArray {
    val found = this[name]?.takeIf { it.kind == Kind.F32 && it.count > 0 } ?: throw InputError("$where: $name: expected values of float32")
    return found.floats()
}

/** The number of values of a shape; null if no tensor has so many. */
fun countOf(shape: List<Any?>): Int? {
    val count = shape.fold(1.0) { product, size -> product * ((size as? Long)?.takeIf { it >= 0 }?.toDouble() ?: Double.NaN) }
    return if (count < Int.MAX_VALUE) count.toInt() else null
}

fun sha256(content: ByteArray): String = hex(MessageDigest.getInstance("SHA-256").digest(content))

fun hex(bytes: ByteArray): String = bytes.joinToString("") { "%02x".format(it) }

/** The hash of tensors: of each its name, a zero byte, its shape as `2,3`, a zero byte, its values; in the order of their names' bytes. */
fun contentSha256(tensors: Map<String, Tensor>): String {
    val digest = MessageDigest.getInstance("SHA-256")
    val byName = tensors.entries.map { (name, tensor) -> name.toByteArray() to tensor }.sortedWith { (a, _), (b, _) -> compared(a, b) }
    for ((name, tensor) in byName) {
        digest.update(name)
        digest.update("\u0000${tensor.shape.joinToString(",")}\u0000".toByteArray())
        digest.update(tensor.bytes)
    }
    return hex(digest.digest())
}

private fun compared(one: ByteArray, other: ByteArray): Int {
    val differs = one.indices.firstOrNull { it >= other.size || one[it] != other[it] } ?: return one.size - other.size
    return if (differs >= other.size) 1 else (one[differs].toInt() and 255) - (other[differs].toInt() and 255)
}
