// Files, read whole and written whole.
package edgefl

import java.io.File
import java.io.FileOutputStream
import java.io.IOException

/** The content of a file; InputError unless it is a regular file, no pipe or device, of at most `mostBytes`. */
fun readRegular(file: File, mostBytes: Long, expected: String): ByteArray {
    if (!file.isFile) throw InputError("$file: missing, or not a regular file; expected $expected")
    if (file.length() > mostBytes) throw InputError("$file: ${file.length()} bytes, expected at most $mostBytes: $expected")
    return try {
        file.readBytes()
    } catch (error: IOException) {
        throw InputError("$file: cannot be read; expected $expected")
    }
}

/** Writes a file, whole or not at all. */
fun write(file: File, content: ByteArray) {
    if (file.exists() && !file.isFile) throw InputError("$file: is no file, but a folder or a device, which would be replaced; give another")
    val part = File(file.absoluteFile.parentFile, ".${file.name}.part")
    try {
        FileOutputStream(part).use {
            it.write(content)
            it.fd.sync()
        }
        if (!part.renameTo(file)) throw IOException("not renamed")
    } catch (error: IOException) {
        part.delete()
        throw InputError("$file: cannot be written; give another")
    }
}
