package android.content

import java.io.File
import java.io.InputStream

open class Context {
    val filesDir: File get() = TODO()
    val assets: Assets get() = TODO()

    interface Assets {
        fun open(name: String): InputStream
    }

    @Suppress("UNUSED_PARAMETER")
    open fun getSystemService(name: String): Any? = TODO()

    @Suppress("UNUSED_PARAMETER")
    open fun registerReceiver(receiver: Nothing?, filter: IntentFilter): Intent? = TODO()

    companion object {
        const val BATTERY_SERVICE = "batterymanager"
    }
}

class IntentFilter(val action: String)

class Intent(private val extras: Map<String, Int>) {
    fun getIntExtra(name: String, defaultValue: Int): Int = extras[name] ?: defaultValue

    companion object {
        const val ACTION_BATTERY_CHANGED = "android.intent.action.BATTERY_CHANGED"
    }
}
