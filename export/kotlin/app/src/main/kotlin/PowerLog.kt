// Writes what the phone draws while it rests and while it trains, for `edgefl calibrate --power`.
package edgefl.app

import android.content.Context
import android.content.Intent
import android.content.IntentFilter
import android.os.BatteryManager
import edgefl.ClientError
import java.io.Closeable
import java.io.File
import java.util.concurrent.Executors
import java.util.concurrent.TimeUnit
import kotlin.math.absoluteValue

private const val EVERY_MS = 200L

/** A CSV file with the battery's state, volts and amperes, a line five times a second. The battery must discharge. */
class PowerLog(private val context: Context, file: File) : Closeable {
    private val battery = context.getSystemService(Context.BATTERY_SERVICE) as BatteryManager
    private val lines = file.bufferedWriter().apply { write("state,volts,amperes\n") }

    /** Does `work`, and writes lines with `state`, idle or training, meanwhile. A ClientError says why the battery cannot be read. */
    fun <T> during(state: String, work: () -> T): T {
        lines.write(line(state)) // a phone that tells nothing is refused before the work
        val clock = Executors.newSingleThreadScheduledExecutor()
        var problem: Exception? = null
        clock.scheduleAtFixedRate({
            try {
                if (problem == null) lines.write(line(state))
            } catch (error: Exception) { // also a full disk
                problem = error
            }
        }, EVERY_MS, EVERY_MS, TimeUnit.MILLISECONDS)
        val found = try {
            work()
        } finally {
            clock.shutdown()
            clock.awaitTermination(EVERY_MS, TimeUnit.MILLISECONDS)
        }
        problem?.let { throw it }
        return found
    }

    override fun close() = lines.close()

    private fun line(state: String): String {
        val now = context.registerReceiver(null, IntentFilter(Intent.ACTION_BATTERY_CHANGED))
        if (now != null && now.getIntExtra(BatteryManager.EXTRA_PLUGGED, 0) != 0)
            throw ClientError("the phone is plugged in, so its battery does not tell what it draws; unplug it")
        val millivolts = now?.getIntExtra(BatteryManager.EXTRA_VOLTAGE, 0) ?: 0
        val microamperes = battery.getIntProperty(BatteryManager.BATTERY_PROPERTY_CURRENT_NOW)
        if (millivolts <= 0 || microamperes == 0 || microamperes == Int.MIN_VALUE)
            throw ClientError("this phone does not tell its battery's volts and amperes; use a meter at its cable")
        // Some phones count what flows out as negative.
        return "$state,${millivolts / 1e3},${microamperes.toLong().absoluteValue / 1e6}\n"
    }
}
