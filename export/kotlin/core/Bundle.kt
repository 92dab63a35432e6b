// A bundle: its folder and its checked manifest. Every other file is checked against its hash when it is read.
package edgefl

import java.io.File
import java.nio.file.Files
import java.time.Instant

private const val FORMAT_VERSION = 2L
private const val MOST_MANIFEST_BYTES = 1L shl 26

class Bundle(val folder: File, val manifest: Manifest, val runtime: Runtime, private val threads: Int) {
    /** The time after which the server refuses updates of the bundle; null: there is none. */
    val expires: String? by lazy { readExpiry() }

    fun tier(label: String): Tier = manifest.tiers.lastOrNull { it.label == label }
        ?: throw InputError("tier: got ${json(label)}, the bundle has ${manifest.tiers.joinToString { it.label }.ifEmpty { "none" }}")

    fun training(label: String): Training = tier(label).training()
        ?: throw InputError("tier $label: it cannot be trained: this bundle was exported for inference only")

    /** The content of a file of the bundle; InputError if the manifest does not list it, or it is missing, a link or changed. */
    fun content(path: String): ByteArray {
        val parts = path.split("/")
        val entry = manifest.files[path].takeIf { parts.none { it in listOf("", ".", "..") || it.contains(Regex("[\\\\:\\x00]")) } }
            ?: throw InputError("${json(path)} is no file of the bundle: expected a path inside that the manifest lists")
        val steps = parts.runningFold(folder) { place, part -> File(place, part) }
        val file = steps.last()
        val again = "get the bundle again"
        if (steps.drop(1).any { Files.isSymbolicLink(it.toPath()) } || !file.isFile) throw InputError("$file: missing, or a link; $again")
        if (file.length() != entry.bytes) throw InputError("$file: changed: ${file.length()} bytes, expected ${entry.bytes}; $again")
        val content = readRegular(file, entry.bytes, "a file of the bundle")
        if (sha256(content) != entry.sha256) throw InputError("$file: changed: its SHA-256 is not the manifest's; $again")
        return content
    }

    fun tensors(path: String): Map<String, Tensor> = Safetensors.read(content(path), path).tensors

    /** Opens a graph; InputError if onnxruntime does not take it. */
    fun session(path: String): Session {
        val graph = content(path)
        if (graph.size >= 8 && String(graph, 4, 4, Charsets.ISO_8859_1) == "ORTM")
            throw InputError("$path: not an ONNX model, but in onnxruntime's own format")
        return try {
            runtime.open(graph, folder, threads)
        } catch (error: RuntimeError) {
            throw InputError("$path: ${runtime.name} does not take it: ${error.message}")
        }
    }

    /** The first tensors of a tier; InputError unless they have the manifest's shapes and finite values. */
    fun parameters(training: Training): Map<String, Tensor> {
        val found = tensors(training.parameters)
        for ((name, shape) in training.shapes) {
            val got = found[name]?.shape
            if (got != shape) throw InputError("${training.parameters}: $name: got ${got ?: "nothing"}, expected shape $shape")
        }
        for ((name, tensor) in found) if (!tensor.isFinite) throw InputError("${training.parameters}: $name holds NaN or infinity")
        return found
    }

    /** Refuses a bundle after the time at which it expires. */
    fun checkTime(now: Instant = Instant.now()) {
        val end = expires ?: return
        if (Instant.parse(end) < now) throw InputError("$folder: expired at $end; get the newest bundle")
    }

    private fun readExpiry(): String? {
        if ("freshness.json" !in manifest.files) return null
        val table = Table.of(parsed(content("freshness.json"), "freshness.json"), "freshness.json: ")
        if (!table.text("line").matches(Regex("[0-9a-f]{64}"))) throw table.wrong("line", "64 hexadecimal digits")
        val expires = if (table.has("expires")) table.text("expires") else return null
        try {
            Instant.parse(expires.takeIf { it.length == 20 })
        } catch (error: RuntimeException) {
            throw table.wrong("expires", "a time in UTC such as 2027-01-31T12:00:00Z")
        }
        return expires
    }

    companion object {
        /**
         * Reads the bundle in `folder`. `check` gets the bytes of the manifest before they are read, and throws if their publisher is not
         * trusted; see [checkSigned].
         */
        fun read(folder: File, runtime: Runtime, threads: Int = 1, check: (ByteArray) -> Unit): Bundle {
            val content = readRegular(File(folder, "manifest.json"), MOST_MANIFEST_BYTES, "a folder that edgefl export wrote")
            check(content)
            val table = Table.of(parsed(content, "manifest.json"), "manifest.json: ")
            if (!table.says("format_version", FORMAT_VERSION))
                throw table.wrong("format_version", "$FORMAT_VERSION: made by another version of edgefl")
            val own = table.text("manifest_sha256")
            val text = String(content, Charsets.ISO_8859_1)
            val blank = text.replaceFirst(own, "0".repeat(64)).toByteArray(Charsets.ISO_8859_1)
            if (own.length != 64 || sha256(blank) != own)
                throw InputError("manifest.json: changed: its SHA-256 is not its manifest_sha256; get the bundle again")
            return Bundle(folder, Manifest(own, table), runtime, threads)
        }
    }
}
