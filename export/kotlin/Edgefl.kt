// Reads a bundle, infers, trains, and writes the update, with onnxruntime's Java API and what Android has.
// Not run by the tests of edgefl: run `check` on a device before you use it.
package edgefl

import ai.onnxruntime.OnnxJavaType
import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtSession
import android.system.Os
import org.json.JSONObject
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.security.MessageDigest
import kotlin.math.abs
import kotlin.math.max

class Tensor(val type: String, val shape: LongArray, val bytes: ByteArray) {
    private fun buffer(): ByteBuffer = ByteBuffer.allocateDirect(bytes.size).order(ByteOrder.nativeOrder()).apply { put(bytes); rewind() }
    fun floats() = FloatArray(bytes.size / 4).also { buffer().asFloatBuffer().get(it) }
    fun longs() = LongArray(bytes.size / 8).also { buffer().asLongBuffer().get(it) }
    fun rows(order: List<Int>): Tensor {
        val row = bytes.size / shape[0].toInt()
        val chosen = ByteArray(order.size * row)
        order.forEachIndexed { i, from -> bytes.copyInto(chosen, i * row, from * row, (from + 1) * row) }
        return Tensor(type, longArrayOf(order.size.toLong()) + shape.drop(1), chosen)
    }

    fun value(env: OrtEnvironment): OnnxTensor = when (type) {
        "F32" -> OnnxTensor.createTensor(env, buffer().asFloatBuffer(), shape)
        "I64" -> OnnxTensor.createTensor(env, buffer().asLongBuffer(), shape)
        else -> OnnxTensor.createTensor(env, buffer(), shape, OnnxJavaType.BOOL)
    }

    companion object {
        fun of(value: Float) = Tensor("F32", longArrayOf(), ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN).putFloat(value).array())
        fun zeros(like: Tensor) = Tensor("F32", like.shape, ByteArray(like.bytes.size))
        fun of(value: OnnxTensor) = Tensor("F32", value.info.shape, value.byteBuffer.let { b -> ByteArray(b.remaining()).also { b.get(it) } })
    }
}

fun safetensors(content: ByteArray): Map<String, Tensor> {
    val length = ByteBuffer.wrap(content).order(ByteOrder.LITTLE_ENDIAN).long.toInt()
    require(length in 2..content.size - 8) { "not a safetensors file" }
    val header = JSONObject(String(content, 8, length))
    return header.keys().asSequence().filter { it != "__metadata__" }.associateWith { name ->
        val entry = header.getJSONObject(name)
        val shape = entry.getJSONArray("shape").let { s -> LongArray(s.length()) { s.getLong(it) } }
        val ends = entry.getJSONArray("data_offsets")
        Tensor(entry.getString("dtype"), shape, content.copyOfRange(8 + length + ends.getInt(0), 8 + length + ends.getInt(1)))
    }
}

fun toSafetensors(tensors: Map<String, Tensor>, about: Map<String, String>): ByteArray {
    val header = JSONObject().put("__metadata__", JSONObject(about))
    var end = 0
    for ((name, tensor) in tensors) {
        val entry = JSONObject().put("dtype", "F32").put("shape", org.json.JSONArray(tensor.shape.toList()))
        header.put(name, entry.put("data_offsets", org.json.JSONArray(listOf(end, end + tensor.bytes.size))))
        end += tensor.bytes.size
    }
    val text = header.toString().toByteArray()
    val length = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(text.size.toLong()).array()
    return tensors.values.fold(length + text) { content, tensor -> content + tensor.bytes }
}

fun sha256(content: ByteArray): String = MessageDigest.getInstance("SHA-256").digest(content).joinToString("") { "%02x".format(it) }

/** `isSigned` gets the bytes of manifest.json and of manifest.sig: check them with the publisher's Ed25519 key. */
class Bundle(private val folder: File, isSigned: (ByteArray, ByteArray) -> Boolean) {
    val env: OrtEnvironment
    val manifest: JSONObject

    init {
        Os.setenv("ORT_DISABLE_TELEMETRY", "1", false) // onnxruntime would send figures of models and of the device to its maker
        env = OrtEnvironment.getEnvironment()
        val content = File(folder, "manifest.json").readBytes()
        check(isSigned(content, File(folder, "manifest.sig").readBytes())) { "manifest.sig: not a signature by the publisher" }
        manifest = JSONObject(String(content))
        check(manifest.getInt("format_version") == 2) { "manifest.json: expected format_version 2" }
        val own = manifest.getString("manifest_sha256")
        check(sha256(String(content).replaceFirst(own, "0".repeat(64)).toByteArray()) == own) { "manifest.json: changed" }
    }

    fun tier(label: String): JSONObject = manifest.getJSONArray("tiers").let { tiers ->
        (0 until tiers.length()).map(tiers::getJSONObject).first { it.getString("label") == label }
    }

    fun content(path: String): ByteArray {
        val entry = manifest.getJSONObject("files").getJSONObject(path)
        return File(folder, path).readBytes().also { check(sha256(it) == entry.getString("sha256")) { "$path: changed" } }
    }

    fun session(path: String): OrtSession = OrtSession.SessionOptions().use { options ->
        options.setIntraOpNumThreads(1)
        options.setMemoryPatternOptimization(false)
        env.createSession(content(path), options)
    }

    fun infer(label: String, samples: Map<String, Tensor>): Tensor = session(tier(label).getString("forward")).use { session ->
        val inputs = samples.filterKeys { it in session.inputNames }.mapValues { it.value.value(env) } // a graph may lack one of several
        session.run(inputs).use { Tensor.of(it.get("logits").get() as OnnxTensor) }.also { inputs.values.forEach(OnnxTensor::close) }
    }
}

/** The training graphs of a tier and the tensors that their steps change. `present`: one byte per class, 1 if the label occurs. */
class Steps(private val bundle: Bundle, label: String, present: ByteArray) : AutoCloseable {
    val table: JSONObject = bundle.tier(label).getJSONObject("train")
    private val held = safetensors(bundle.content(table.getString("parameters")))
    private val sessions = table.getJSONArray("graphs").let { g -> (0 until g.length()).map { bundle.session(g.getString(it)) } }
    private val now = mutableMapOf<String, Tensor>()

    init {
        val scalars = mapOf("lr" to table.getDouble("lr"), "beta" to table.getDouble("momentum"), "t" to 0.0, "seed" to 0.0)
        scalars.forEach { (name, value) -> now[name] = Tensor.of(value.toFloat()) }
        now["present"] = Tensor("BOOL", longArrayOf(present.size.toLong()), present)
        for ((role, prefix) in mapOf("trained" to "p.", "statistics" to "s.", "frozen" to "f."))
            for (name in table.getJSONObject(role).keys()) now[prefix + name] = held.getValue(name)
        for (name in sessions.flatMap { it.inputNames }) when {
            name.startsWith("m.") || name.startsWith("v.") -> now[name] = Tensor.zeros(now.getValue("p." + name.drop(2)))
            name.startsWith("f.start.") -> now[name] = held.getValue(name.removePrefix("f.start."))
            name.startsWith("f.shift.") -> {
                val of = name.removePrefix("f.shift.")
                now[name] = held["control:$of"] ?: Tensor.zeros(held.getValue(of))
            }
        }
    }

    /** Takes a step of a graph on a batch (x, or x.NAME of several inputs, and y), and returns its loss. If that, or a tensor, is not finite, nothing changes. */
    fun step(batch: Map<String, Tensor>, graph: Int = 0): Float {
        val session = sessions[graph]
        val inputs = session.inputNames.associateWith { (batch[it] ?: now.getValue(it)).value(bundle.env) }
        val found = session.run(inputs).use { results ->
            session.outputNames.associate { it.removeSuffix(".out") to Tensor.of(results.get(it).get() as OnnxTensor) }
        }
        inputs.values.forEach(OnnxTensor::close)
        val odd = found.keys.find { (it == "loss" || it.startsWith("p.") || it.startsWith("s.")) && !found.getValue(it).floats().all(Float::isFinite) }
        check(odd == null) { "$odd would be NaN or infinite: training diverged; a smaller lr may help" }
        now += found
        return found.getValue("loss").floats()[0]
    }

    /** A parameter or a statistic as it is now. */
    fun tensor(name: String): Tensor = now["p.$name"] ?: now.getValue("s.$name")

    /** The content of an unsigned update; `client` is a random name, another one for each bundle. */
    fun update(tier: String, labels: LongArray, steps: Int, client: String): ByteArray {
        check(table.optString("no_update").isEmpty()) { table.getString("no_update") }
        val objective = table.optJSONObject("objective")?.optString("name", "none") ?: "none"
        check(objective == "none" || objective == "prox") { "objective $objective needs tensors that this client does not store" }
        check((table.optJSONArray("personal")?.length() ?: 0) == 0) { "personal tensors: this client does not store them between rounds" }
        val manifest = bundle.manifest
        val about = mutableMapOf(
            "format" to "edgefl-update", "version" to "1", "bundle" to manifest.getString("manifest_sha256"),
            "round" to manifest.optInt("round").toString(), "tier" to tier, "samples" to labels.size.toString(),
            "steps" to steps.toString(), "client" to client,
        )
        if (table.optBoolean("labels")) about["labels"] = labels.distinct().sorted().joinToString(",")
        val sent = table.getJSONObject("upload").keys().asSequence().associateWith { now["p.$it"] ?: now["s.$it"] ?: now.getValue("f.$it") }
        return toSafetensors(sent, about)
    }

    override fun close() = sessions.forEach(OrtSession::close)
}

/** Compares every tier with its references; returns a line for each that is wrong. */
fun check(bundle: Bundle): List<String> = buildList {
    val tiers = bundle.manifest.getJSONArray("tiers")
    for (tier in (0 until tiers.length()).map(tiers::getJSONObject)) {
        val label = tier.getString("label")
        val reference = safetensors(bundle.content(tier.getString("reference")))
        val expected = reference.getValue("logits").floats()
        val found = bundle.infer(label, reference - "logits").floats()
        val allowed = 1e-4f * max(1f, expected.maxOf { abs(it) })
        if (found.indices.any { abs(found[it] - expected[it]) > allowed }) add("tier $label: outputs differ")
        val train = tier.optJSONObject("train") ?: continue
        val stored = safetensors(bundle.content(train.getString("reference")))
        val (after, batch) = stored.entries.partition { it.key.startsWith("after:") }.let { (a, b) -> a to b.associate { it.toPair() } }
        Steps(bundle, label, ByteArray(bundle.manifest.getInt("classes")) { 1 }).use { steps ->
            for (loss in batch.getValue("losses").floats())
                if (abs(steps.step(batch - "losses") / loss - 1) > 1e-3) add("tier $label: losses differ")
            val slack = if (train.getString("optimizer") == "adam") 1e-5 + 6 * train.getDouble("lr") else 1e-5
            for ((key, tensor) in after) {
                val name = key.removePrefix("after:")
                val now = steps.tensor(name).floats()
                val values = now.filterIndexed { i, _ -> i % max(1, (now.size + 255) / 256) == 0 } // every k-th value, at most 256
                val allowed = 1e-3 * tensor.floats().maxOf { abs(it) } + slack
                if (values.zip(tensor.floats().toList()).any { (found, wanted) -> abs(found - wanted) > allowed }) add("tier $label: $name differs")
            }
        }
    }
}
