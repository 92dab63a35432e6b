// Stand-ins of onnxruntime's Java package, so that the compiler reads the app: signatures as in onnxruntime's own sources, no code.
package ai.onnxruntime

import java.nio.ByteBuffer
import java.nio.DoubleBuffer
import java.nio.FloatBuffer
import java.nio.IntBuffer
import java.nio.LongBuffer
import java.util.Optional

class OrtException(message: String) : Exception(message)

enum class OnnxJavaType { FLOAT, DOUBLE, INT8, INT16, INT32, INT64, BOOL, STRING, UINT8, FLOAT16, BFLOAT16, UNKNOWN }

interface OnnxValue : AutoCloseable {
    val info: ValueInfo
}

interface ValueInfo

class TensorInfo(@JvmField val type: OnnxJavaType, val shape: LongArray) : ValueInfo

class NodeInfo(val name: String, val info: ValueInfo)

abstract class OnnxTensor : OnnxValue {
    abstract override val info: TensorInfo
    abstract val byteBuffer: ByteBuffer

    @Suppress("UNUSED_PARAMETER")
    companion object {
        fun createTensor(env: OrtEnvironment, data: FloatBuffer, shape: LongArray): OnnxTensor = TODO()
        fun createTensor(env: OrtEnvironment, data: DoubleBuffer, shape: LongArray): OnnxTensor = TODO()
        fun createTensor(env: OrtEnvironment, data: LongBuffer, shape: LongArray): OnnxTensor = TODO()
        fun createTensor(env: OrtEnvironment, data: IntBuffer, shape: LongArray): OnnxTensor = TODO()
        fun createTensor(env: OrtEnvironment, data: ByteBuffer, shape: LongArray, type: OnnxJavaType): OnnxTensor = TODO()
    }
}

abstract class OrtEnvironment {
    abstract fun createSession(modelArray: ByteArray, options: OrtSession.SessionOptions): OrtSession

    companion object {
        fun getEnvironment(): OrtEnvironment = TODO()
    }
}

abstract class OrtSession : AutoCloseable {
    abstract val inputInfo: Map<String, NodeInfo>
    abstract val outputNames: Set<String>
    abstract fun run(inputs: Map<String, OnnxTensor>): Result

    abstract class Result : AutoCloseable {
        abstract fun get(key: String): Optional<OnnxValue>
    }

    @Suppress("UNUSED_PARAMETER")
    class SessionOptions : AutoCloseable {
        fun setIntraOpNumThreads(numThreads: Int): Unit = TODO()
        fun setInterOpNumThreads(numThreads: Int): Unit = TODO()
        fun setMemoryPatternOptimization(memoryPatternOptimization: Boolean): Unit = TODO()
        fun addConfigEntry(configKey: String, configValue: String): Unit = TODO()
        override fun close(): Unit = TODO()
    }
}
