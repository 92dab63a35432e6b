// This device's key in a PEM file.
package edgefl

import java.io.File
import java.security.KeyFactory
import java.security.KeyPairGenerator
import java.security.SecureRandom
import java.security.Signature
import java.security.interfaces.EdECPrivateKey
import java.security.spec.NamedParameterSpec
import java.security.spec.PKCS8EncodedKeySpec

/** The Ed25519 key in a PEM file without a passphrase; InputError if there is none. */
class FileKey(file: File) : DeviceKey {
    private val secret = keyOf("$file", "private") {
        val content = der(readRegular(file, MOST_KEY_BYTES, "this device's key"))
        KeyFactory.getInstance("Ed25519").generatePrivate(PKCS8EncodedKeySpec(content)) as EdECPrivateKey
    }

    /** Java computes the public half only for a new pair: one is made of the bytes of the private half. */
    override val public: ByteArray = run {
        val known = object : SecureRandom() {
            override fun nextBytes(bytes: ByteArray) {
                secret.bytes.get().copyInto(bytes)
            }
        }
        val pairs = KeyPairGenerator.getInstance("Ed25519").apply { initialize(NamedParameterSpec.ED25519, known) }
        pairs.generateKeyPair().public.encoded.takeLast(32).toByteArray()
    }

    override fun sign(content: ByteArray): ByteArray = Signature.getInstance("Ed25519").run {
        initSign(secret)
        update(content)
        sign()
    }
}
