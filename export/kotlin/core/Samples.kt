// Samples and labels as the graphs take them, prepared as the manifest says.
package edgefl

/** Samples by the inputs of the graphs (x, or x.NAME of several), and labels or targets y; null: there are none. */
class Samples(val inputs: Map<String, Tensor>, val y: Tensor?) {
    val count: Int get() = inputs.values.first().shape[0]

    companion object {
        /**
         * Checks the tensors of a file or an app. `raw` values, such as pixels, are prepared as the manifest says. InputError, which begins
         * with `where`, if a name, shape, kind or value is wrong.
         */
        fun of(manifest: Manifest, given: Map<String, Tensor>, raw: Boolean = true, where: String = ""): Samples {
            val names = given.keys - "y"
            val expected = manifest.inputs.keys
            if (names != expected)
                throw InputError("${where}got ${names.joinToString().ifEmpty { "nothing" }}, expected ${expected.joinToString()} and y")
            val inputs = manifest.inputs.mapValues { (name, input) -> prepared("$where$name", given.getValue(name), input, raw) }
            val first = inputs.entries.first()
            val count = first.value.shape[0]
            for ((name, tensor) in inputs)
                if (tensor.shape[0] != count)
                    throw InputError("$where$name: ${tensor.shape[0]} samples, expected $count, as many as of ${first.key}")
            return Samples(inputs, given["y"]?.let { targets(manifest, it, count, where) })
        }
    }
}

private val PIXELS = setOf(Kind.U8, Kind.U16)
private val FLOATS = setOf(Kind.F32, Kind.F64)

private fun prepared(where: String, x: Tensor, input: Input, raw: Boolean): Tensor {
    if (x.shape.isEmpty() || x.shape.drop(1) != input.shape) throw InputError("$where: got shape ${x.shape}, expected samples of ${input.shape}")
    if (x.shape[0] == 0) throw InputError("$where: no sample, expected at least one")
    val found = when {
        raw && input.dtype == "float32" && (x.kind in PIXELS || (input.how.raw && x.kind in FLOATS)) -> normalised(where, x, input.how)
        input.dtype == "int64" && x.kind !in FLOATS -> ids(where, x, input.how)
        else -> x
    }
    if (found.kind.label != input.dtype) {
        val pixels = if (raw && input.dtype != "int64") ", or uint8 where they are raw pixels" else ""
        throw InputError("$where: got ${x.kind.label}, expected ${input.dtype}, what the network takes$pixels")
    }
    if (!found.isFinite) throw InputError("$where holds NaN or infinity, expected finite values")
    return found
}

private fun ids(where: String, x: Tensor, how: Preprocessing): Tensor {
    val values = LongArray(x.count) { x.number(it).toLong() }
    if (values.any { it < 0 || it >= (how.ids ?: Int.MAX_VALUE) })
        throw InputError("$where: token ids ${values.min()} to ${values.max()}, expected 0 to ${how.ids?.minus(1) ?: "any"}")
    return Tensor.of(x.shape, values)
}

/** (value · scale − mean) / std, computed in double and rounded once, as in every client; pixels of 16 bits in units of 8. */
private fun normalised(where: String, x: Tensor, how: Preprocessing): Tensor {
    if (how.scale == null || how.mean == null || how.std == null)
        throw InputError("$where: raw pixels, but the manifest has no scale, mean and std: expected prepared float32")
    val channels = x.shape.getOrElse(1) { 1 }
    val inner = x.shape.drop(2).fold(1) { product, size -> product * size }
    for ((key, values) in listOf("mean" to how.mean, "std" to how.std))
        if (values.size != 1 && (x.shape.size < 2 || values.size != channels))
            throw InputError("$where: ${values.size} values of $key in the manifest, expected one, or one for each channel")
    val unit = if (x.kind == Kind.U16) how.scale * (255.0 / 65535) else how.scale
    return Tensor.of(x.shape, FloatArray(x.count) { i ->
        val channel = i / inner % channels
        ((x.number(i) * unit - how.mean[if (how.mean.size == 1) 0 else channel]) / how.std[if (how.std.size == 1) 0 else channel]).toFloat()
    })
}

private fun targets(manifest: Manifest, y: Tensor, count: Int, where: String): Tensor {
    val expected = listOf(count) + (manifest.targetShape ?: listOf())
    if (y.shape != expected) throw InputError("${where}y: got shape ${y.shape}, expected $expected")
    if (manifest.targetShape != null) {
        if (!y.isFinite) throw InputError("${where}y holds NaN or infinity, expected finite values")
        return Tensor.of(y.shape, FloatArray(y.count) { y.number(it).toFloat() })
    }
    if (y.kind in FLOATS || y.kind == Kind.BOOL) throw InputError("${where}y: got ${y.kind.label}, expected whole numbers")
    val labels = LongArray(count) { y.number(it).toLong() }
    val odd = labels.find { it < 0 || it >= manifest.classes }
    if (odd != null) throw InputError("${where}y: label $odd, expected 0 to ${manifest.classes - 1}")
    return Tensor.of(y.shape, labels)
}
