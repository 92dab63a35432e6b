// What the client needs of onnxruntime. Another library, or another way to the same one, is another implementation of this.
package edgefl

import java.io.File

/** The library failed, or does not take a graph; its first line says why. */
class RuntimeError(message: String) : Exception(message)

interface Runtime {
    /** The library and its version, for messages. */
    val name: String

    /** Opens a graph. Weights in other files are looked for in `folder` only. RuntimeError if the library does not take it. */
    fun open(graph: ByteArray, folder: File, threads: Int): Session
}

interface Session : AutoCloseable {
    /** Name of each input → its kind. */
    val inputs: Map<String, Kind>
    val outputs: List<String>

    /** Runs the graph on a value for each input, and returns its outputs. RuntimeError if it cannot. */
    fun run(values: Map<String, Tensor>): Map<String, Tensor>
}
