// onnxruntime as Android's package has it. The tests compile this file, but cannot run it: run `check` on a device.
package edgefl.app

import ai.onnxruntime.OnnxJavaType
import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtSession
import ai.onnxruntime.TensorInfo
import android.system.Os
import edgefl.Kind
import edgefl.Runtime
import edgefl.RuntimeError
import edgefl.Session
import edgefl.Tensor
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder

private val KINDS = mapOf(
    OnnxJavaType.FLOAT to Kind.F32, OnnxJavaType.DOUBLE to Kind.F64, OnnxJavaType.INT64 to Kind.I64, OnnxJavaType.INT32 to Kind.I32,
    OnnxJavaType.UINT8 to Kind.U8, OnnxJavaType.BOOL to Kind.BOOL,
)

class AndroidRuntime : Runtime {
    override val name = "onnxruntime for Android"
    private val environment: OrtEnvironment

    init {
        Os.setenv("ORT_DISABLE_TELEMETRY", "1", false) // it would send figures of models and of the device to its maker
        environment = OrtEnvironment.getEnvironment()
    }

    override fun open(graph: ByteArray, folder: File, threads: Int): Session = caught {
        OrtSession.SessionOptions().use { options ->
            options.setIntraOpNumThreads(threads)
            options.setInterOpNumThreads(1)
            options.setMemoryPatternOptimization(false) // frees every value after its last use
            options.addConfigEntry("session.model_external_initializers_file_folder_path", folder.absolutePath)
            AndroidSession(environment, environment.createSession(graph, options))
        }
    }
}

private class AndroidSession(private val environment: OrtEnvironment, private val session: OrtSession) : Session {
    override val inputs = session.inputInfo.mapValues { kindOf(it.value.info as TensorInfo) }
    override val outputs = session.outputNames.toList()

    override fun run(values: Map<String, Tensor>): Map<String, Tensor> = caught {
        val given = mutableMapOf<String, OnnxTensor>()
        try {
            for ((name, tensor) in values) given[name] = value(tensor)
            session.run(given).use { results -> outputs.associateWith { tensor(results.get(it).get() as OnnxTensor) } }
        } finally {
            given.values.forEach(OnnxTensor::close)
        }
    }

    override fun close() = session.close()

    private fun value(tensor: Tensor): OnnxTensor {
        val shape = LongArray(tensor.shape.size) { tensor.shape[it].toLong() }
        val buffer = ByteBuffer.allocateDirect(tensor.bytes.size).order(ByteOrder.nativeOrder()).apply { put(tensor.bytes).rewind() }
        return when (tensor.kind) {
            Kind.F32 -> OnnxTensor.createTensor(environment, buffer.asFloatBuffer(), shape)
            Kind.F64 -> OnnxTensor.createTensor(environment, buffer.asDoubleBuffer(), shape)
            Kind.I64 -> OnnxTensor.createTensor(environment, buffer.asLongBuffer(), shape)
            Kind.I32 -> OnnxTensor.createTensor(environment, buffer.asIntBuffer(), shape)
            Kind.U8 -> OnnxTensor.createTensor(environment, buffer, shape, OnnxJavaType.UINT8)
            Kind.BOOL -> OnnxTensor.createTensor(environment, buffer, shape, OnnxJavaType.BOOL)
            Kind.U16 -> throw RuntimeError("a tensor is uint16, which Android's package does not have")
        }
    }

    private fun tensor(value: OnnxTensor): Tensor {
        val buffer = value.byteBuffer
        return Tensor(kindOf(value.info), value.info.shape.map(Long::toInt), ByteArray(buffer.remaining()).also { buffer.get(it) })
    }
}

private fun kindOf(info: TensorInfo): Kind = KINDS[info.type] ?: throw RuntimeError("a tensor is ${info.type}, which this client does not read")

private fun <T> caught(call: () -> T): T = try {
    call()
} catch (error: OrtException) {
    throw RuntimeError(error.message.orEmpty().lines().first())
}
