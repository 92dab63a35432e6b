// A table of JSON whose values are read with their types; what is wrong is said with its place.
package edgefl

class Table(private val entries: Map<String, Any?>, private val where: String) {
    val keys: Set<String> get() = entries.keys

    operator fun contains(key: String) = key in entries

    /** Whether a key that may be null has a value. */
    fun has(key: String) = entries[key] != null

    fun says(key: String, value: Any) = entries[key] == value

    fun text(key: String) = typed<String>(key, null, "a text")

    fun text(key: String, usual: String) = typed(key, usual, "a text")

    fun flag(key: String, usual: Boolean) = typed(key, usual, "true or false")

    fun whole(key: String, usual: Long? = null) = typed(key, usual, "a whole number")

    /** A whole number from 1 to 2^31. */
    fun positive(key: String): Int = whole(key).takeIf { it in 1 until Int.MAX_VALUE }?.toInt() ?: throw wrong(key, "at least 1")

    fun number(key: String, usual: Double? = null) = typed<Number>(key, usual, "a number").toDouble()

    /** Numbers of a list, or a number alone. */
    fun numbers(key: String): List<Double> {
        val found = entries[key].let { it as? List<*> ?: listOf(it) }.map { (it as? Number)?.toDouble() ?: throw wrong(key, "numbers") }
        return found.ifEmpty { throw wrong(key, "numbers") }
    }

    fun texts(key: String, usual: List<String>? = null): List<String> =
        typed<List<*>>(key, usual, "a list of texts").map { it as? String ?: throw wrong(key, "a list of texts") }

    fun table(key: String, usual: Map<String, Any?>? = null) = Table(plain(typed<Map<*, *>>(key, usual, "a table")), "$where$key: ")

    fun tables(key: String, usual: List<Any?>? = null) = typed(key, usual, "a list").mapIndexed { i, it -> of(it, "$where$key.$i: ") }

    fun shape(key: String): List<Int> {
        val found = typed<List<*>>(key, null, "a list of sizes")
        countOf(found) ?: throw wrong(key, "a list of sizes")
        return found.map { (it as Long).toInt() }
    }

    /** Name → shape. */
    fun shapes(key: String): Map<String, List<Int>> = table(key).let { names -> names.keys.associateWith(names::shape) }

    fun wrong(key: String, expected: String) =
        InputError("$where$key: got ${if (key in entries) json(entries[key]).take(100) else "nothing"}, expected $expected")

    private inline fun <reified T> typed(key: String, usual: T?, expected: String): T =
        (if (key in entries) entries[key] else usual) as? T ?: throw wrong(key, expected)

    companion object {
        /** A value that must be a table; InputError, which begins with `where`, if it is another. */
        fun of(value: Any?, where: String) = Table(plain(value as? Map<*, *> ?: throw InputError("${where}expected a table")), where)

        private fun plain(map: Map<*, *>): Map<String, Any?> = map.entries.associate { (key, value) -> key as String to value }
    }
}
