// What goes wrong, each with one sentence for the user.
package edgefl

/** Training diverged, or onnxruntime failed; no file was written. `exitCode` is that of every client. */
open class ClientError(message: String, val exitCode: Int = 1) : Exception(message)

/** An input is wrong: a file, a bundle or an argument. */
class InputError(message: String) : ClientError(message, 2)

/** A limit of time is too small. */
class BudgetError(message: String) : ClientError(message, 3)

/** A text without characters that would change a terminal, such as escape codes in the name of a class. */
fun printable(text: String): String {
    val hidden = listOf(Character.CONTROL, Character.FORMAT, Character.SURROGATE, Character.PRIVATE_USE, Character.UNASSIGNED)
    val spaces = listOf(Character.LINE_SEPARATOR, Character.PARAGRAPH_SEPARATOR, Character.SPACE_SEPARATOR)
    val found = StringBuilder()
    for (code in text.codePoints().toArray()) {
        val shown = code == ' '.code || code == '\n'.code || code == '\t'.code || Character.getType(code).toByte() !in hidden + spaces
        found.appendCodePoint(if (shown) code else 0xFFFD)
    }
    return found.toString()
}
