// Logs the power of a battery that a test describes: file, millivolts, microamperes at rest and at work, plugged.
package edgefl.app

import android.content.Context
import android.content.Intent
import android.content.IntentFilter
import android.os.BatteryManager
import edgefl.ClientError
import java.io.File

private class Phone(private val millivolts: Int, private val plugged: Int, var microamperes: Int) : Context() {
    override fun getSystemService(name: String) = object : BatteryManager() {
        override fun getIntProperty(id: Int) = microamperes
    }

    override fun registerReceiver(receiver: Nothing?, filter: IntentFilter) = Intent(mapOf("voltage" to millivolts, "plugged" to plugged))
}

object Battery {
    @JvmStatic
    fun main(arguments: Array<String>) {
        val (millivolts, idle, training, plugged) = arguments.drop(1).map(String::toInt)
        val phone = Phone(millivolts, plugged, idle)
        try {
            PowerLog(phone, File(arguments[0])).use { log ->
                log.during("idle") { Thread.sleep(900) }
                phone.microamperes = training
                println(log.during("training") { Thread.sleep(900).let { "worked" } })
            }
        } catch (error: ClientError) {
            println(error.message)
        }
    }
}
