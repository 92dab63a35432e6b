package android.system

@Suppress("UNUSED_PARAMETER")
object Os {
    fun setenv(name: String, value: String, overwrite: Boolean): Unit = TODO()
}
