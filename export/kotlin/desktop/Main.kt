// Runs and trains the models of a bundle on a desktop JVM: `edgefl-client` without arguments prints how.
package edgefl

import java.io.File
import java.io.FileDescriptor
import java.io.FileOutputStream
import java.io.PrintStream
import kotlin.system.exitProcess

private const val USAGE = """edgefl-client check BUNDLE                    compares every tier with its references
edgefl-client infer BUNDLE TIER DATA          prints the class and the logits of each sample, or a regression's outputs
edgefl-client train BUNDLE TIER DATA [--out UPDATE] [--state FILE] [--client NAME] [--device-key FILE]
                    [--epochs N] [--batch-size N] [--lr RATE] [--seed N] [--max-seconds S] [--max-steps N]
                    [--checkpoint FILE] [--checkpoint-every N]
                    writes the update, the state, from which it continues, or both; some bundles send no updates.
                    --checkpoint: the file from which an interrupted training continues, written every 10 steps, or N
Every command needs --key FILE, the publisher's public key, or --allow-unsigned. --threads N: of onnxruntime [1].
--library FILE: onnxruntime's shared library [libonnxruntime of the system].
DATA is a safetensors file: x, or x.NAME for each of several inputs; for training also y, labels or targets.
Pixels of 8 and 16 bits are prepared as the manifest says, and floats if it has raw.
"""

private val OF_ALL = setOf("--key", "--allow-unsigned", "--threads", "--library")
private val OF_TRAINING = setOf(
    "--out", "--state", "--client", "--device-key", "--epochs", "--batch-size", "--lr", "--seed", "--max-seconds", "--max-steps", "--checkpoint",
    "--checkpoint-every",
)
private const val MOST_DATA_BYTES = 1L shl 31

/** The words and options of a command line. */
private class Arguments(given: List<String>) {
    val words = mutableListOf<String>()
    private val options = mutableMapOf<String, String>()

    init {
        val rest = given.iterator()
        for (name in rest) when {
            !name.startsWith("--") -> words += name
            name !in OF_ALL && !(words.firstOrNull() == "train" && name in OF_TRAINING) ->
                throw InputError("$name: ${words.firstOrNull()} has no such option")
            name == "--allow-unsigned" -> options[name] = ""
            else -> options[name] = if (rest.hasNext()) rest.next() else throw InputError("$name: a value is missing")
        }
    }

    fun file(name: String): File? = options[name]?.let(::File)

    fun text(name: String, usual: String = ""): String = options[name] ?: usual

    fun has(name: String) = name in options

    fun <T : Any> number(name: String, expected: String, read: (String) -> T?): T? = options[name]?.let { given ->
        read(given) ?: throw InputError("$name: got $given, expected $expected")
    }

    fun positive(name: String): Int? = number(name, "a whole number above 0") { it.toIntOrNull()?.takeIf { number -> number > 0 } }

    fun float(name: String, expected: String, right: (Double) -> Boolean): Double? =
        number(name, expected) { it.toDoubleOrNull()?.takeIf { number -> number.isFinite() && right(number) } }
}

/** Runs a command, and returns its exit status. */
fun client(given: List<String>, runtime: (String) -> Runtime, out: Appendable, errors: Appendable): Int = try {
    val arguments = Arguments(given)
    val words = arguments.words
    if (words.firstOrNull() !in setOf("check", "infer", "train") || words.size != if (words[0] == "check") 2 else 4) {
        errors.append(USAGE)
        2
    } else {
        val bundle = opened(arguments, runtime)
        when (words[0]) {
            "check" -> checked(bundle, out, errors)
            "infer" -> inferred(bundle, words[2], data(bundle, words[3]), out)
            else -> trained(bundle, words[2], words[3], arguments, out, errors)
        }
    }
} catch (error: ClientError) {
    errors.append("Error: ${printable(error.message.orEmpty())}\n")
    error.exitCode
}

private fun opened(arguments: Arguments, runtime: (String) -> Runtime): Bundle {
    val folder = File(arguments.words[1])
    val key = arguments.file("--key")?.let { publicKey(readRegular(it, MOST_KEY_BYTES, "a public key"), "$it") }
    if (key == null && !arguments.has("--allow-unsigned")) throw InputError("a bundle is code: give --key FILE, or --allow-unsigned")
    val threads = arguments.positive("--threads") ?: 1
    val bundle = Bundle.read(folder, runtime(arguments.text("--library", "onnxruntime")), threads) { manifest ->
        if (key != null) checkSigned(manifest, readRegular(File(folder, "manifest.sig"), MOST_KEY_BYTES, "the signature of the manifest"), key)
    }
    return bundle.also { if (key != null) it.checkTime() }
}

/** The samples of a file. Those of the bundle's references are prepared already. */
private fun data(bundle: Bundle, path: String): Samples {
    val found = Safetensors.read(readRegular(File(path), MOST_DATA_BYTES, "a safetensors file"), path).tensors
    val beside = found.keys.filter { it == "losses" || it == "logits" || it.startsWith("after:") }
    return Samples.of(bundle.manifest, found - beside.toSet(), raw = beside.isEmpty(), where = "$path: ")
}

private fun checked(bundle: Bundle, out: Appendable, errors: Appendable): Int {
    val found = check(bundle)
    for (tier in found) {
        val shares = listOf("outputs" to tier.outputs, "losses" to tier.losses, "weights" to tier.weights).filter { it.second != null }
        val text = shares.joinToString { (what, share) -> "$what by %.3g %%".format(100 * share!!) }
        out.append("tier ${printable(tier.tier)}: differs in $text of what is allowed${if (tier.isRight) "" else ": wrong"}\n")
    }
    if (found.all { it.isRight }) return 0
    errors.append("Error: a tier differs from its reference by more than rounding\n")
    return 1
}

private fun inferred(bundle: Bundle, label: String, samples: Samples, out: Appendable): Int {
    val logits = infer(bundle, label, samples)
    val values = logits.floats()
    for (row in values.asList().chunked(maxOf(1, values.size / samples.count))) {
        val name = bundle.manifest.classNames.takeIf { bundle.manifest.targetShape == null }?.getOrNull(row.indices.maxBy { row[it] })
        out.append((listOfNotNull(name?.let(::printable)) + row.map { "$it" }).joinToString("\t", postfix = "\n"))
    }
    return 0
}

private fun trained(bundle: Bundle, label: String, path: String, arguments: Arguments, out: Appendable, errors: Appendable): Int {
    val (sent, kept) = arguments.file("--out") to arguments.file("--state")
    if (sent == null && kept == null) throw InputError("train: got neither --out UPDATE nor --state FILE, expected one of them, or both")
    if (sent != null) checkSendable(bundle.training(label).noUpdate)
    val how = Settings(
        arguments.positive("--epochs"), arguments.positive("--batch-size"), arguments.float("--lr", "a number above 0") { it > 0 },
        arguments.number("--seed", "a whole number from 0 to ${ULong.MAX_VALUE}", String::toULongOrNull),
        arguments.float("--max-seconds", "a number from 0") { it >= 0 }, arguments.positive("--max-steps"),
    )
    val name = arguments.text("--client")
    if (!name.matches(Regex("[0-9A-Za-z._-]{0,64}"))) throw InputError("--client: got ${json(name)}, expected 1 to 64 of 0-9 A-Z a-z . _ -")
    val key = arguments.file("--device-key")?.let(::FileKey)
    val before = kept?.takeIf(File::exists)?.let(State::read)
    val every = arguments.positive("--checkpoint-every") ?: 10
    val checkpoint = arguments.file("--checkpoint")?.let { Checkpoint(it, every) }
    val state = train(bundle, label, data(bundle, path), how, before, name, checkpoint)
    if (sent != null) write(sent, update(state, key))
    if (kept != null) write(kept, state.toBytes())
    checkpoint?.file?.delete() // not before the results are written
    if (state.note.isNotEmpty()) errors.append("${state.note}\n")
    out.append("${state.losses.size} steps, loss ${state.losses.first()} to ${state.losses.last()}\n")
    return 0
}

fun main(given: Array<String>) {
    val (out, errors) = listOf(FileDescriptor.out, FileDescriptor.err).map { PrintStream(FileOutputStream(it).buffered(), false, "UTF-8") }
    val status = client(given.toList(), ::Onnxruntime, out, errors)
    listOf(out, errors).forEach(PrintStream::flush)
    exitProcess(status)
}
