// Runs commands of the Kotlin client one after another in one process: their words are read from standard input as JSON.
package edgefl

object Batch {
    @JvmStatic
    fun main(given: Array<String>) {
        val runtimes = mutableMapOf<String, Runtime>()
        val commands = parsed(System.`in`.readBytes(), "standard input") as List<*>
        val found = commands.map { words ->
            val (out, errors) = StringBuilder() to StringBuilder()
            val command = (words as List<*>).map { it as String }
            val status = client(command, { library -> runtimes.getOrPut(library) { Onnxruntime(library) } }, out, errors)
            listOf(status, "$out", "$errors")
        }
        System.out.write(json(found).toByteArray())
        System.out.flush()
    }
}
