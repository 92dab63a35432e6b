// Ed25519 keys: the publisher's, who signed the bundle, and this device's own, which signs its updates.
// Java has the algorithm since 15, Android since API level 33. Below, register a provider such as Bouncy Castle.
package edgefl

import java.security.GeneralSecurityException
import java.security.KeyFactory
import java.security.PublicKey
import java.security.Signature
import java.security.spec.X509EncodedKeySpec
import java.util.Base64

const val MOST_KEY_BYTES = 65536L

/** The key of an enrolled device. In an app its private half stays in the key store. */
interface DeviceKey {
    /** The 32 bytes of the public half. */
    val public: ByteArray

    fun sign(content: ByteArray): ByteArray
}

/** The Ed25519 public key in the content of a PEM file; InputError, which begins with `where`, if there is none. */
fun publicKey(pem: ByteArray, where: String): PublicKey = keyOf(where, "public") {
    KeyFactory.getInstance("Ed25519").generatePublic(X509EncodedKeySpec(der(pem)))
}

/** What `read` makes of a key; InputError if it fails. */
fun <Key> keyOf(where: String, kind: String, read: () -> Key): Key = try {
    read()
} catch (error: GeneralSecurityException) {
    throw InputError("$where: not an Ed25519 $kind key, PEM")
} catch (error: IllegalArgumentException) {
    throw InputError("$where: not an Ed25519 $kind key, PEM")
}

/** The bytes between the two lines of a PEM file. */
fun der(pem: ByteArray): ByteArray =
    Base64.getMimeDecoder().decode(String(pem, Charsets.ISO_8859_1).lines().filter { "-----" !in it }.joinToString(""))

/** Refuses a manifest that the owner of `key` has not signed. */
fun checkSigned(manifest: ByteArray, signature: ByteArray, key: PublicKey) {
    val right = try {
        Signature.getInstance("Ed25519").run {
            initVerify(key)
            update(manifest)
            verify(signature)
        }
    } catch (error: GeneralSecurityException) {
        false
    }
    if (!right) throw InputError("manifest.sig: not a signature of this manifest by the given key: do not use the bundle")
}

/** The metadata of an update with the device's key, and its signature of all metadata and tensors. */
fun signed(about: Map<String, String>, tensors: Map<String, Tensor>, key: DeviceKey): Map<String, String> {
    val base64 = Base64.getEncoder()
    val found = about + ("key" to base64.encodeToString(key.public))
    val lines = found.toSortedMap().map { (name, value) -> "$name=$value" } + "content=${contentSha256(tensors)}"
    val text = (listOf("edgefl update signature 1") + lines).joinToString("") { "$it\n" }
    return found + ("signature" to base64.encodeToString(key.sign(text.toByteArray())))
}
