// What training came to. It stays on the device: any client continues from it.
package edgefl

import java.io.File

private const val MOST_STATE_BYTES = 1L shl 36
private val NEEDED = listOf("bundle", "round", "tier", "samples", "steps", "client", "upload", "no_update")

/** Begins the names of what the optimizer and dropout continue with. */
const val NOW = "now:"

/**
 * Tensors by name, and what the file says of itself. An objective adds `memory:NAME` and `before:NAME`, its tensors after and before the
 * round. `losses` are those of the steps, and `note` says why a training shuffled the samples anew, else nothing.
 */
class State(val tensors: Map<String, Tensor>, val about: Map<String, String>, val losses: List<Float> = listOf(), val note: String = "") {
    fun toBytes(): ByteArray = Safetensors(tensors, about).toBytes()

    fun isOf(bundle: Bundle): Boolean = about["bundle"] == bundle.manifest.sha256

    /** The names of the tensors that the server aggregates, without control variates. */
    val upload: List<String> get() = (parsed(about.getValue("upload").toByteArray(), "upload") as List<*>).map { it as String }

    val labels: Set<Long> get() = about["labels"].orEmpty().split(",").filter(String::isNotEmpty).map(String::toLong).toSet()

    companion object {
        /** Reads a state that a client wrote; InputError if the file holds none. */
        fun read(file: File): State {
            val found = Safetensors.read(readRegular(file, MOST_STATE_BYTES, "a state that train wrote"), "$file")
            val about = found.about
            if (about["format"] != "edgefl-state" || about["version"] != "1") throw InputError("$file: not a state that train wrote")
            val state = State(found.tensors, about)
            val sound = try {
                val numbers = listOf("round", "samples", "steps").map { about.getValue(it).toLong() } + state.labels
                NEEDED.all(about::contains) && numbers.all { it >= 0 } && state.tensors.keys.containsAll(state.upload) &&
                    (about["lr_sum"] ?: "0").toDouble().isFinite()
            } catch (error: RuntimeException) {
                false
            } catch (error: InputError) {
                false
            }
            if (!sound) throw InputError("$file: not a state that train wrote (damaged metadata): train again")
            return state
        }
    }
}

/** The tensors that training begins with: those of `state` if it is of this bundle, else the bundle's with personal ones of `state`. */
fun currentTensors(bundle: Bundle, label: String, given: Map<String, Tensor>, state: State?): Map<String, Tensor> {
    if (state == null) return given
    val training = bundle.training(label)
    val (round, own) = state.about.getValue("round").toLong() to bundle.manifest.round
    if (state.about["tier"] != label) throw InputError("--state: it is of tier ${state.about["tier"]}, expected $label")
    if (!state.isOf(bundle) && round >= own)
        throw InputError("--state: it is of round $round of another bundle, this one is of round $own; expected a state of an earlier round")
    val names = if (state.isOf(bundle)) given.keys intersect state.tensors.keys else training.personal
    val beside = listOf("memory:", "before:", "${NOW}m.", "${NOW}v.").flatMap { kind -> training.trained.map { (name, shape) -> "$kind$name" to shape } }
    val shapes = names.associateWith { given.getValue(it).shape } + beside + mapOf("${NOW}t" to listOf(), "${NOW}seed" to listOf())
    for ((name, shape) in shapes) {
        val found = state.tensors[name]
        if (if (found == null) name in names else found.shape != shape || found.kind != Kind.F32)
            throw InputError("--state: $name: missing or of another shape, expected $shape: it is of another model")
    }
    return given + names.associateWith(state.tensors::getValue)
}
