package android.os

@Suppress("UNUSED_PARAMETER")
open class BatteryManager {
    open fun getIntProperty(id: Int): Int = TODO()

    companion object {
        const val BATTERY_PROPERTY_CURRENT_NOW = 2
        const val EXTRA_VOLTAGE = "voltage"
        const val EXTRA_PLUGGED = "plugged"
    }
}
