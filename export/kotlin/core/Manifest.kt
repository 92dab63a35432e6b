// The manifest of a bundle, checked before anything relies on it. ../../README.md of export/ specifies its keys.
package edgefl

/** How raw values become an input: (value · scale − mean) / std. `ids`: how many token ids there are; null: any number. */
class Preprocessing(table: Table) {
    val scale: Double? = if ("scale" in table) table.number("scale") else null
    val mean: List<Double>? = if ("mean" in table) table.numbers("mean") else null
    val std: List<Double>? = if ("std" in table) table.numbers("std") else null
    val raw: Boolean = "raw" in table && table.text("raw").let { true }
    val ids: Int?

    init {
        if (std != null && 0.0 in std) throw table.wrong("std", "numbers, and none of std is 0")
        val characters = table.text("alphabet", "").let { it.codePointCount(0, it.length) }
        val words = if (table.has("words")) table.texts("words") else listOf()
        ids = if (characters > 0) characters else (words.size + 1).takeIf { words.isNotEmpty() }
    }
}

/** What the graphs take under one name: samples of a shape. */
class Input(val shape: List<Int>, val dtype: String, val how: Preprocessing)

class Listed(val bytes: Long, val sha256: String)

class Manifest(val sha256: String, table: Table) {
    val round: Long = table.whole("round", 0)
    val inputs: Map<String, Input>
    val classes: Int = table.positive("classes")
    val classNames: List<String> = table.texts("class_names")
    val targetShape: List<Int>? = if (table.has("target_shape")) table.shape("target_shape") else null
    val files: Map<String, Listed> = table.table("files").let { files ->
        files.keys.associateWith { path -> files.table(path).let { Listed(it.whole("bytes"), it.text("sha256")) } }
    }
    val tiers: List<Tier> = table.tables("tiers").map(::Tier)

    init {
        val alone = Input(table.shape("input_shape"), table.text("input_dtype", "float32"), Preprocessing(table.table("preprocessing")))
        val several = if (table.has("inputs")) table.table("inputs") else Table(mapOf(), "")
        inputs = if (several.keys.isEmpty()) mapOf("x" to alone) else several.keys.associate { name ->
            val entry = several.table(name)
            "x.$name" to Input(entry.shape("shape"), entry.text("dtype", "float32"), Preprocessing(entry.table("preprocessing", mapOf())))
        }
        if (targetShape == null && classNames.size != classes) throw table.wrong("class_names", "one name for each of $classes classes")
    }
}

/** A tier. How it is trained is checked by [training], which is null of a bundle for inference only. */
class Tier(private val table: Table) {
    val label: String = table.text("label")
    val forward: String = table.text("forward")
    val batchSize: Int = table.positive("batch_size")

    init {
        for (variant in table.tables("variants", listOf())) listOf("kind", "graph").forEach(variant::text)
    }

    val reference: String get() = table.text("reference")

    fun training(): Training? = if (table.has("train")) Training(table.table("train"), roundSeconds()) else null

    private fun roundSeconds(): Double? {
        val budget = if (table.has("budget")) table.table("budget") else return null
        val limits = listOf("round_s", "memory_bytes").map { key ->
            if (budget.has(key)) budget.number(key).takeIf { it >= 0 } ?: throw budget.wrong(key, "a number from 0, or none") else null
        }
        return limits[0]
    }
}

class Training(private val table: Table, val roundSeconds: Double?) {
    val graphs: List<String> = table.texts("graphs")
    val predict: String = table.text("predict")
    val parameters: String = table.text("parameters")
    val optimizer: String = table.text("optimizer")
    val lr: Double = table.number("lr")
    val momentum: Double = table.number("momentum")
    val batchSize: Int = table.positive("batch_size")
    val epochs: Int = table.positive("epochs")
    val trained: Map<String, List<Int>> = table.shapes("trained")
    val statistics: Map<String, List<Int>> = table.shapes("statistics")
    val frozen: Map<String, List<Int>> = table.shapes("frozen")
    val personal: List<String> = table.texts("personal", listOf())
    val upload: List<String> = table.table("upload").keys.toList()
    val objective: String
    val strength: Double
    val present: Boolean = table.flag("present", false)
    val noUpdate: String = table.text("no_update", "")
    val labels: Boolean = table.says("labels", true)
    val flips: Boolean = table.says("augment", "flip")

    val reference: String get() = table.text("reference")

    /** Names of all tensors → shape. */
    val shapes: Map<String, List<Int>> = trained + statistics + frozen

    init {
        if (graphs.isEmpty()) throw table.wrong("graphs", "at least one training graph")
        for (name in personal) if (name !in shapes) throw table.wrong("personal", "tensors of the tier")
        for (name in upload) if (name !in shapes || name in personal) throw table.wrong("upload", "tensors of the tier, none of them personal")
        val term = table.table("objective", mapOf())
        objective = term.text("name", "none")
        strength = term.number("strength", 0.0)
    }
}
