// onnxruntime's C API on a desktop JVM, by JNA: for the command line and the tests. An app has Android's package instead.
package edgefl

import com.sun.jna.Function
import com.sun.jna.Memory
import com.sun.jna.NativeLibrary
import com.sun.jna.Platform
import com.sun.jna.Pointer
import com.sun.jna.StringArray
import java.io.File

private const val API_VERSION = 17 // onnxruntime 1.17, the first with ai.onnx 20
private const val SILENT = 4

/** Places of functions in the table OrtApi, which only grows: those of onnxruntime_c_api.h. */
private enum class Call(val place: Int) {
    GET_ERROR_MESSAGE(2), CREATE_ENV(3), DISABLE_TELEMETRY(6), CREATE_SESSION(8), RUN(9), CREATE_OPTIONS(10), DISABLE_MEM_PATTERN(17),
    SET_LOG_SEVERITY(22), SET_INTRA_THREADS(24), SET_INTER_THREADS(25), INPUT_COUNT(30), OUTPUT_COUNT(31), INPUT_TYPE(33), INPUT_NAME(36),
    OUTPUT_NAME(37), CREATE_TENSOR(49), TENSOR_DATA(51), TENSOR_INFO_OF_TYPE(55), ELEMENT_TYPE(60), DIMENSION_COUNT(61), DIMENSIONS(62),
    TENSOR_INFO(65), CREATE_CPU_MEMORY(69), FREE(76), DEFAULT_ALLOCATOR(78), RELEASE_STATUS(93), RELEASE_SESSION(95), RELEASE_VALUE(96),
    RELEASE_TYPE(98), RELEASE_TENSOR_INFO(99), RELEASE_OPTIONS(100), ADD_CONFIG_ENTRY(130),
}

private val KINDS = mapOf(1 to Kind.F32, 2 to Kind.U8, 4 to Kind.U16, 6 to Kind.I32, 7 to Kind.I64, 9 to Kind.BOOL, 11 to Kind.F64)
private val NUMBERS = KINDS.entries.associate { (number, kind) -> kind to number }

/** Calls of the table. What returns a status is checked; what returns a value through a pointer returns it. Without the library, JNA unloads it. */
private class OrtApi(@Suppress("unused") private val library: NativeLibrary, private val table: Pointer) {
    fun call(call: Call, vararg arguments: Any?) {
        val status = function(call).invokePointer(arguments) ?: return
        val message = function(Call.GET_ERROR_MESSAGE).invokePointer(arrayOf(status)).getString(0, "UTF-8")
        release(Call.RELEASE_STATUS, status)
        throw RuntimeError(message.trim().lines().first())
    }

    fun release(call: Call, what: Pointer) = function(call).invokeVoid(arrayOf(what))

    fun pointer(call: Call, vararg arguments: Any?): Pointer = returned(call, arguments) { it.getPointer(0) }

    fun number(call: Call, vararg arguments: Any?): Long = returned(call, arguments) { it.getLong(0) }

    private fun <T> returned(call: Call, arguments: Array<out Any?>, read: (Memory) -> T): T = Memory(8).use {
        it.clear()
        call(call, *arguments, it)
        read(it)
    }

    private fun function(call: Call) = Function.getFunction(table.getPointer(8L * call.place))
}

/** onnxruntime in the shared library at a path, or of a name that the system finds. */
class Onnxruntime(library: String) : Runtime {
    override val name: String
    private val api: OrtApi
    private val environment: Pointer

    init {
        silenceTelemetry()
        val (loaded, base) = try {
            NativeLibrary.getInstance(library).let { it to it.getFunction("OrtGetApiBase").invokePointer(arrayOf()) }
        } catch (error: UnsatisfiedLinkError) {
            throw InputError("--library: $library is not onnxruntime's shared library")
        }
        name = "onnxruntime ${Function.getFunction(base.getPointer(8)).invokePointer(arrayOf()).getString(0)}"
        val table = Function.getFunction(base.getPointer(0)).invokePointer(arrayOf(API_VERSION))
        api = OrtApi(loaded, table ?: throw InputError("--library: $name, expected 1.$API_VERSION or newer"))
        environment = api.pointer(Call.CREATE_ENV, SILENT, "edgefl")
        api.call(Call.DISABLE_TELEMETRY, environment)
    }

    override fun open(graph: ByteArray, folder: File, threads: Int): Session {
        val options = api.pointer(Call.CREATE_OPTIONS)
        try {
            api.call(Call.SET_LOG_SEVERITY, options, SILENT)
            api.call(Call.SET_INTRA_THREADS, options, threads)
            api.call(Call.SET_INTER_THREADS, options, 1)
            api.call(Call.DISABLE_MEM_PATTERN, options) // frees every value after its last use
            api.call(Call.ADD_CONFIG_ENTRY, options, "session.model_external_initializers_file_folder_path", folder.absolutePath)
            return Memory(maxOf(1L, graph.size.toLong())).use {
                it.write(0, graph, 0, graph.size)
                OrtSession(api, api.pointer(Call.CREATE_SESSION, environment, it, graph.size.toLong(), options))
            }
        } finally {
            api.release(Call.RELEASE_OPTIONS, options)
        }
    }

    private fun silenceTelemetry() { // it would send figures of models and of the device to its maker
        val (library, function) = if (Platform.isWindows()) "msvcrt" to "_putenv_s" else "c" to "setenv"
        if (System.getenv("ORT_DISABLE_TELEMETRY") == null)
            NativeLibrary.getInstance(library).getFunction(function).invokeInt(arrayOf<Any>("ORT_DISABLE_TELEMETRY", "1", 0))
    }
}

private class OrtSession(private val api: OrtApi, private val session: Pointer) : Session {
    private val allocator = api.pointer(Call.DEFAULT_ALLOCATOR)
    private val memory = api.pointer(Call.CREATE_CPU_MEMORY, 0, 0)
    override val inputs = (0 until api.number(Call.INPUT_COUNT, session)).associate { text(Call.INPUT_NAME, it) to kindOfInput(it) }
    override val outputs = (0 until api.number(Call.OUTPUT_COUNT, session)).map { text(Call.OUTPUT_NAME, it) }

    override fun run(values: Map<String, Tensor>): Map<String, Tensor> {
        val tensors = inputs.keys.map { values[it] ?: throw RuntimeError("input $it: there is no value") }
        val buffers = tensors.map { tensor -> Memory(maxOf(1L, tensor.bytes.size.toLong())).also { it.write(0, tensor.bytes, 0, tensor.bytes.size) } }
        val given = mutableListOf<Pointer>()
        val results = arrayOfNulls<Pointer>(outputs.size)
        try {
            tensors.forEachIndexed { i, tensor -> given += value(tensor, buffers[i]) }
            val found = Memory(8L * maxOf(1, outputs.size)).also { it.clear() }
            val names = StringArray(inputs.keys.toTypedArray(), "UTF-8") to StringArray(outputs.toTypedArray(), "UTF-8")
            api.call(Call.RUN, session, null, names.first, given.toTypedArray(), given.size.toLong(), names.second, outputs.size.toLong(), found)
            outputs.indices.forEach { results[it] = found.getPointer(8L * it) }
            return outputs.indices.associate { outputs[it] to tensor(results[it]!!) }
        } finally {
            (given + results.filterNotNull()).forEach { api.release(Call.RELEASE_VALUE, it) }
            buffers.forEach(Memory::close)
        }
    }

    override fun close() = api.release(Call.RELEASE_SESSION, session)

    private fun value(tensor: Tensor, buffer: Memory): Pointer {
        val shape = LongArray(tensor.shape.size) { tensor.shape[it].toLong() }
        val kind = NUMBERS.getValue(tensor.kind)
        return api.pointer(Call.CREATE_TENSOR, memory, buffer, tensor.bytes.size.toLong(), shape, shape.size.toLong(), kind)
    }

    private fun tensor(value: Pointer): Tensor {
        val info = api.pointer(Call.TENSOR_INFO, value)
        try {
            val kind = kindOf(info)
            val rank = api.number(Call.DIMENSION_COUNT, info).toInt()
            val shape = LongArray(rank).also { if (rank > 0) api.call(Call.DIMENSIONS, info, it, rank.toLong()) }.map(Long::toInt)
            val bytes = shape.fold(kind.size) { product, size -> product * size }
            return Tensor(kind, shape, api.pointer(Call.TENSOR_DATA, value).getByteArray(0, bytes))
        } finally {
            api.release(Call.RELEASE_TENSOR_INFO, info)
        }
    }

    private fun kindOfInput(number: Long): Kind {
        val type = api.pointer(Call.INPUT_TYPE, session, number)
        try {
            return kindOf(api.pointer(Call.TENSOR_INFO_OF_TYPE, type))
        } finally {
            api.release(Call.RELEASE_TYPE, type)
        }
    }

    private fun kindOf(info: Pointer): Kind {
        val number = api.number(Call.ELEMENT_TYPE, info).toInt()
        return KINDS[number] ?: throw RuntimeError("a tensor has the type $number, which this client does not read")
    }

    private fun text(call: Call, number: Long): String {
        val found = api.pointer(call, session, number, allocator)
        return found.getString(0, "UTF-8").also { api.call(Call.FREE, allocator, found) }
    }
}
