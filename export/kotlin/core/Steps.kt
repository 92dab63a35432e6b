// The training graphs of a tier, and the tensors that their steps change.
package edgefl

class Steps(private val bundle: Bundle, private val training: Training, feeds: Map<String, Tensor>, batch: Map<String, Tensor>) : AutoCloseable {
    private val sessions = training.graphs.map(bundle::session)
    private val now = linkedMapOf<String, Tensor>()
    private val changed = sessions.flatMap { it.outputs }.filter { it.endsWith(".out") }.map { it.removeSuffix(".out") }.toSet()

    init {
        for (session in sessions) for ((name, kind) in session.inputs) {
            val value = batch[name] ?: now.getOrPut(name) { feeds[name] ?: first(name, feeds) }
            if (value.kind != kind) throw InputError("input $name: got ${value.kind.label}, expected ${kind.label}, as the graph takes it")
        }
    }

    /** A step of a graph on a batch, the step `number` of the training, and its loss. ClientError if it is not finite; nothing changes then. */
    fun step(batch: Map<String, Tensor>, graph: Int, number: Int): Float {
        fun diverged(what: String) = ClientError("step $number: $what: training diverged; a smaller learning rate may help")
        val session = sessions[graph]
        val found = ran(bundle, session, session.inputs.keys.associateWith { batch[it] ?: now.getValue(it) })
        val loss = found.floats("loss", training.graphs[graph])[0]
        if (!loss.isFinite()) throw diverged("the loss is $loss")
        val odd = found.keys.find { (it.startsWith("p.") || it.startsWith("s.")) && !found.getValue(it).isFinite }
        if (odd != null) throw diverged("${odd.removeSuffix(".out").drop(2)} would hold NaN or infinity")
        for ((name, tensor) in found) if (name.endsWith(".out")) now[name.removeSuffix(".out")] = tensor
        return loss
    }

    /** Parameters and statistics, name in the network → value. */
    fun tensors(): Map<String, Tensor> = now.filterKeys { it.startsWith("p.") || it.startsWith("s.") }.mapKeys { it.key.drop(2) }

    /** What the optimizer and dropout continue with, as a state has it. */
    fun continued(): Map<String, Tensor> =
        now.filterKeys { it in changed && !it.startsWith("p.") && !it.startsWith("s.") }.mapKeys { NOW + it.key }

    /** All that steps change, the optimizer's state included, as progress has it. */
    fun changing(): Map<String, Tensor> = now.filterKeys(changed::contains).mapKeys { NOW + it.key }

    /** Continues from what [changing] returned; InputError, which begins with `where`, if it is of other graphs. */
    fun restore(found: Map<String, Tensor>, where: String) {
        for (name in changed intersect now.keys) {
            val (own, stored) = now.getValue(name) to found[NOW + name]
            if (stored == null || stored.kind != own.kind || stored.shape != own.shape)
                throw InputError("$where: $name: missing or of another shape, expected ${own.shape}: it is of another model")
            now[name] = stored
        }
    }

    override fun close() = sessions.forEach(Session::close)

    private fun first(name: String, feeds: Map<String, Tensor>): Tensor {
        val beside = if (name.startsWith("m.") || name.startsWith("v.")) feeds["p.${name.drop(2)}"] else null
        return if (name == "t" || name == "seed") Tensor.scalar(0f)
        else Tensor.zeros(beside ?: throw InputError("a training graph has an input ${json(name)}, for which the bundle has no value"))
    }
}

/** Input → value: trained tensors are `p.NAME`, statistics `s.NAME`, frozen ones `f.NAME`. */
fun byRole(training: Training, tensors: Map<String, Tensor>): Map<String, Tensor> {
    val roles = listOf("p." to training.trained, "s." to training.statistics, "f." to training.frozen)
    return roles.flatMap { (prefix, names) -> names.keys.map { prefix + it to tensors.getValue(it) } }.toMap()
}

/** The outputs of a graph; ClientError if onnxruntime fails. */
fun ran(bundle: Bundle, session: Session, values: Map<String, Tensor>): Map<String, Tensor> = try {
    session.run(values)
} catch (error: RuntimeError) {
    throw ClientError("${bundle.runtime.name} cannot run the graph: ${error.message}")
}
