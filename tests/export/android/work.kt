// Stand-ins of WorkManager.
@file:Suppress("UNUSED_PARAMETER")

package androidx.work

import android.content.Context
import java.util.concurrent.TimeUnit

class WorkerParameters

abstract class ListenableWorker(val applicationContext: Context) {
    val isStopped: Boolean get() = TODO()

    class Result private constructor() {
        companion object {
            fun success(): Result = TODO()
            fun retry(): Result = TODO()
            fun failure(): Result = TODO()
        }
    }
}

abstract class Worker(context: Context, parameters: WorkerParameters) : ListenableWorker(context) {
    abstract fun doWork(): Result
}

enum class NetworkType { UNMETERED }

class Constraints {
    class Builder {
        fun setRequiresCharging(requiresCharging: Boolean): Builder = TODO()
        fun setRequiredNetworkType(networkType: NetworkType): Builder = TODO()
        fun build(): Constraints = TODO()
    }
}

enum class ExistingPeriodicWorkPolicy { KEEP }

class PeriodicWorkRequest {
    class Builder(worker: Class<out ListenableWorker>, repeatInterval: Long, unit: TimeUnit) {
        fun setConstraints(constraints: Constraints): Builder = TODO()
        fun build(): PeriodicWorkRequest = TODO()
    }
}

class WorkManager {
    fun enqueueUniquePeriodicWork(name: String, policy: ExistingPeriodicWorkPolicy, request: PeriodicWorkRequest): Unit = TODO()

    companion object {
        fun getInstance(context: Context): WorkManager = TODO()
    }
}
