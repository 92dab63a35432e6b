package android.content

import java.io.File
import java.io.InputStream

open class Context {
    val filesDir: File get() = TODO()
    val assets: Assets get() = TODO()

    interface Assets {
        fun open(name: String): InputStream
    }
}
