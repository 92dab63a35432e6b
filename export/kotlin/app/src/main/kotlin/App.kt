package edgefl.app

import android.app.Application

class App : Application() {
    override fun onCreate() {
        super.onCreate()
        TrainingWorker.schedule(this)
    }
}
