// The update: what the server aggregates.
package edgefl

private val SENT = listOf("version", "bundle", "round", "tier", "samples", "steps", "client", "labels", "deadline")

/** The content of an update file, signed with `key` if the device is enrolled. InputError if the server cannot aggregate such updates. */
fun update(state: State, key: DeviceKey? = null): ByteArray {
    checkSendable(state.about.getValue("no_update"))
    val names = state.upload + state.tensors.keys.filter { it.startsWith("control:") }
    val tensors = names.associateWith(state.tensors::getValue)
    for ((name, tensor) in tensors) {
        if (tensor.kind != Kind.F32) throw InputError("$name: got ${tensor.kind.label}, expected float32")
        if (!tensor.isFinite) throw ClientError("$name: NaN or infinity: training diverged; a smaller learning rate may help")
    }
    val about = mapOf("format" to "edgefl-update") + SENT.filter { it in state.about }.associateWith(state.about::getValue)
    return Safetensors(tensors, if (key == null) about else signed(about, tensors, key)).toBytes()
}

/** Refuses a tier whose updates cannot be aggregated, for the reason in its manifest. */
fun checkSendable(reason: String) {
    if (reason.isNotEmpty())
        throw InputError("updates of this model cannot be aggregated outside of a simulation: $reason; leave out --out, and give --state FILE")
}
