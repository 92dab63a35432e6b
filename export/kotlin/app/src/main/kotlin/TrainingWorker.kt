// Trains the bundle in the app's folder while the phone charges on an unmetered network, and leaves an update to send.
package edgefl.app

import android.content.Context
import android.util.Log
import androidx.work.Constraints
import androidx.work.ExistingPeriodicWorkPolicy
import androidx.work.NetworkType
import androidx.work.PeriodicWorkRequest
import androidx.work.WorkManager
import androidx.work.Worker
import androidx.work.WorkerParameters
import edgefl.Bundle
import edgefl.Checkpoint
import edgefl.ClientError
import edgefl.MOST_KEY_BYTES
import edgefl.Safetensors
import edgefl.Samples
import edgefl.Settings
import edgefl.State
import edgefl.check
import edgefl.checkSigned
import edgefl.plannedSteps
import edgefl.publicKey
import edgefl.readRegular
import edgefl.train
import edgefl.update
import edgefl.write
import java.io.File
import java.util.concurrent.TimeUnit

private const val TIER = "0.5"
private const val MOST_SAMPLES_BYTES = 1L shl 28

/** Files of the app: bundle/ with the bundle, samples.safetensors with x and y, state, progress-…, and update when it is finished. */
class TrainingWorker(context: Context, parameters: WorkerParameters) : Worker(context, parameters) {
    private val folder: File = context.filesDir
    private val state = File(folder, "state")

    override fun doWork(): Result = try {
        if (finished()) Result.success() else Result.retry()
    } catch (error: ClientError) { // no weights or samples are in its message
        Log.w("edgefl", error.message.orEmpty())
        Result.failure()
    }

    /** Trains until all steps are done, or the system stops the worker, or kills it; state and progress continue to the same bits. */
    private fun finished(): Boolean {
        val bundle = opened()
        val had = state.takeIf(File::exists)?.let(State::read)
        val done = if (had != null && had.isOf(bundle)) had.about.getValue("steps").toInt() else 0
        if (done == 0 && check(bundle).any { !it.isRight })
            throw ClientError("this phone computes something else than the bundle's references")
        val content = readRegular(File(folder, "samples.safetensors"), MOST_SAMPLES_BYTES, "samples")
        val samples = Samples.of(bundle.manifest, Safetensors.read(content, "samples").tensors)
        val left = plannedSteps(bundle.training(TIER), samples.count) - done
        if (left <= 0) return true
        val progress = progressOf(bundle, done)
        val found = train(bundle, TIER, samples, Settings(maxSteps = left), had, checkpoint = Checkpoint(progress)) { _, _ -> !isStopped }
        write(state, found.toBytes())
        progress.delete()
        if (found.losses.size < left && isStopped) return false
        write(File(folder, "update"), update(found))
        return true
    }

    /** Where the steps after the first `done` ones are stored; progress of other trainings is deleted. */
    private fun progressOf(bundle: Bundle, done: Int): File {
        val found = File(folder, "progress-${bundle.manifest.sha256.take(16)}-$done")
        folder.listFiles { file -> file.name.startsWith("progress-") && file != found }?.forEach(File::delete)
        return found
    }

    /** The bundle, signed by the key that came with the app, and not expired. */
    private fun opened(): Bundle {
        val bundle = File(folder, "bundle")
        val key = publicKey(applicationContext.assets.open("publisher.pub").use { it.readBytes() }, "publisher.pub")
        return Bundle.read(bundle, AndroidRuntime()) { manifest ->
            checkSigned(manifest, readRegular(File(bundle, "manifest.sig"), MOST_KEY_BYTES, "a signature"), key)
        }.also { it.checkTime() }
    }

    companion object {
        /** Asks the system to train once a day. */
        fun schedule(context: Context) {
            val conditions = Constraints.Builder().setRequiresCharging(true).setRequiredNetworkType(NetworkType.UNMETERED).build()
            val work = PeriodicWorkRequest.Builder(TrainingWorker::class.java, 1, TimeUnit.DAYS).setConstraints(conditions).build()
            WorkManager.getInstance(context).enqueueUniquePeriodicWork("edgefl", ExistingPeriodicWorkPolicy.KEEP, work)
        }
    }
}
