// A small app that trains a bundle while the phone charges. It compiles the client's core from its own folder.
plugins {
    id("com.android.application") version "8.7.3"
    id("org.jetbrains.kotlin.android") version "2.1.0"
}

android {
    namespace = "edgefl.app"
    compileSdk = 35
    defaultConfig {
        applicationId = "edgefl.app"
        minSdk = 33 // the first with Ed25519; 26 with a provider that has it
        targetSdk = 35
        versionCode = 1
        versionName = "1.0"
    }
    sourceSets["main"].kotlin.srcDir("../core")
    buildTypes {
        release {
            isMinifyEnabled = true
            proguardFiles(getDefaultProguardFile("proguard-android-optimize.txt"), "proguard-rules.pro")
        }
    }
    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }
    kotlinOptions { jvmTarget = "17" }
}

dependencies {
    implementation("com.microsoft.onnxruntime:onnxruntime-android:1.24.2")
    implementation("androidx.work:work-runtime-ktx:2.10.0")
}
