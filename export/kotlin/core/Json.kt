// JSON, read strictly: no key twice, no text that UTF-8 cannot express, no number beyond 2^62, at most 200 levels.
package edgefl

import java.nio.ByteBuffer
import java.nio.charset.CharacterCodingException

/** A document as Map, List, String, Long, Double, Boolean or null; InputError, which begins with `where`, if it is not valid. */
fun parsed(content: ByteArray, where: String): Any? {
    val text = try {
        Charsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(content)).toString()
    } catch (error: CharacterCodingException) {
        throw InputError("$where: not valid JSON: not UTF-8")
    }
    return JsonReader(text, where).document()
}

/** A value as JSON without spaces. */
fun json(value: Any?): String = when (value) {
    is Map<*, *> -> value.entries.joinToString(",", "{", "}") { (key, inner) -> "${json(key)}:${json(inner)}" }
    is List<*> -> value.joinToString(",", "[", "]", transform = ::json)
    is String -> value.map { if (it < ' ' || it == '"' || it == '\\') "\\u%04x".format(it.code) else "$it" }.joinToString("", "\"", "\"")
    else -> value.toString()
}

private const val MOST_LEVELS = 200
private const val LARGEST = 4611686018427387904.0 // 2^62
private val NUMBER = Regex("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?")
private val ESCAPES = mapOf('"' to '"', '\\' to '\\', '/' to '/', 'b' to '\b', 'f' to '\u000c', 'n' to '\n', 'r' to '\r', 't' to '\t')

private class JsonReader(private val text: String, private val where: String) {
    private var at = 0

    fun document(): Any? {
        val found = value(1)
        if (next() != null) fail("expected its end")
        return found
    }

    private fun value(level: Int): Any? {
        if (level > MOST_LEVELS) fail("nested deeper than $MOST_LEVELS levels")
        return when (next()) {
            '{' -> table(level)
            '[' -> list(level)
            '"' -> string()
            't' -> word("true", true)
            'f' -> word("false", false)
            'n' -> word("null", null)
            else -> number()
        }
    }

    private fun table(level: Int): Map<String, Any?> {
        val found = LinkedHashMap<String, Any?>()
        items('}') {
            if (next() != '"') fail("expected a key")
            val key = string()
            if (key in found) fail("the key ${json(key)} occurs twice")
            take(':')
            found[key] = value(level + 1)
        }
        return found
    }

    private fun list(level: Int): List<Any?> = ArrayList<Any?>().also { found -> items(']') { found += value(level + 1) } }

    private fun items(end: Char, item: () -> Unit) {
        at++
        if (next() == end) return take(end)
        item()
        while (next() == ',') {
            at++
            item()
        }
        take(end)
    }

    private fun string(): String {
        val found = StringBuilder()
        for (start in generateSequence(++at) { at }) {
            while (at < text.length && text[at] >= ' ' && text[at] != '"' && text[at] != '\\') at++
            found.append(text, start, at)
            if (at >= text.length || text[at] < ' ') fail("expected the end of a text")
            if (text[at++] == '"') break
            found.append(escaped())
        }
        if (!Charsets.UTF_8.newEncoder().canEncode(found)) fail("half a character")
        return found.toString()
    }

    private fun escaped(): Char {
        val kind = text.getOrNull(at++)
        if (kind != 'u') return ESCAPES[kind] ?: fail("no such escape")
        val digits = text.substring(at, minOf(at + 4, text.length))
        if (!digits.matches(Regex("[0-9a-fA-F]{4}"))) fail("expected four hexadecimal digits")
        at += 4
        return digits.toInt(16).toChar()
    }

    private fun number(): Number {
        val found = NUMBER.matchAt(text, at)?.value ?: fail("expected a value")
        at += found.length
        val number: Number = found.toLongOrNull() ?: found.toDouble()
        if (number.toDouble() !in -LARGEST..LARGEST) fail("expected a finite number of at most 63 bits")
        return number
    }

    private fun <T> word(word: String, value: T): T = value.also { if (text.startsWith(word, at)) at += word.length else fail("expected a value") }

    private fun next(): Char? {
        while (at < text.length && text[at] in " \t\n\r") at++
        return text.getOrNull(at)
    }

    private fun take(expected: Char) {
        if (next() != expected) fail("expected '$expected'")
        at++
    }

    private fun fail(problem: String): Nothing = throw InputError("$where: not valid JSON: character ${at + 1}: $problem")
}
