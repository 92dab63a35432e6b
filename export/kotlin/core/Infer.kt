// Inference.
package edgefl

/** The outputs (n, …) of samples by the tier's graph, or by the weights of `state`: logits of classes, or a regression's outputs. */
fun infer(bundle: Bundle, label: String, samples: Samples, state: State? = null): Tensor {
    val tier = bundle.tier(label)
    if (state == null) return bundle.session(tier.forward).use { outputs(bundle, tier, it, samples, mapOf()) }
    val training = bundle.training(label)
    val held = currentTensors(bundle, label, bundle.parameters(training), state)
    return bundle.session(training.predict).use { outputs(bundle, tier, it, samples, byRole(training, held)) }
}

private fun outputs(bundle: Bundle, tier: Tier, session: Session, samples: Samples, weights: Map<String, Tensor>): Tensor {
    val given = samples.inputs.filterKeys { it in session.inputs } // a graph may lack one of several
    if (given.isEmpty()) throw InputError("tier ${tier.label}: its graph reads none of ${samples.inputs.keys.joinToString()}")
    val lacks = session.inputs.keys.find { it !in given && it !in weights }
    if (lacks != null) throw InputError("tier ${tier.label}: its graph has an input ${json(lacks)}, for which there is no value")
    val found = (0 until samples.count).chunked(tier.batchSize).map { index ->
        val part = given.mapValues { it.value.rows(index.toIntArray()) }
        ran(bundle, session, weights.filterKeys { it in session.inputs } + part)
    }
    val values = found.flatMap { it.floats("logits", "tier ${tier.label}").asList() }.toFloatArray()
    val odd = values.find { !it.isFinite() }
    val spoiled = "the weights are spoiled, or the samples are none of this network"
    if (odd != null) throw ClientError("tier ${tier.label}: the graph computes $odd, expected finite outputs: $spoiled")
    return Tensor.of(listOf(samples.count) + found[0].getValue("logits").shape.drop(1), values)
}
