package android.app

import android.content.Context

open class Application : Context() {
    open fun onCreate(): Unit = TODO()
}
