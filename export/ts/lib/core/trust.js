// Which bundles this device runs: those that a publisher signed whom it trusts. The first publisher's key is pinned.
import { shown } from "./checks.js";
import { InputError, UntrustedError } from "./problems.js";
import { base64, decoded, fromBase64, hex } from "./text.js";
const SPKI = "302a300506032b6570032100"; // RFC 8410: what precedes the 32 bytes of an Ed25519 key in DER
/** Return the 32 bytes of an Ed25519 public key, from PEM or raw bytes; null if there is none. */
export function publicKey(content) {
    if (content.length === 32)
        return Uint8Array.from(content);
    const found = /^\s*-----BEGIN PUBLIC KEY-----([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----\s*$/.exec(decoded(content));
    const der = fromBase64((found?.[1] ?? "").replace(/\s/g, ""));
    return der?.length === 44 && hex(der.subarray(0, 12)) === SPKI ? der.slice(12) : null;
}
/** Return the keys that this device trusts; InputError if what is stored is damaged. */
export async function pinned(pins) {
    const text = await pins.read();
    if (text === null)
        return [];
    try {
        const { keys } = JSON.parse(text);
        if (Array.isArray(keys) && keys.length && keys.every((key) => typeof key === "string" && fromBase64(key)?.length === 32))
            return keys;
    }
    catch {
        // as any other text
    }
    throw new InputError(`${pins.where}: expected the public keys that this device trusts; repair it, or remove it`);
}
/** Trust the publisher with this key from now on. */
export async function pin(pins, key) {
    const keys = [...new Set([...(await pinned(pins)), key])];
    try {
        await pins.write(`${JSON.stringify({ keys }, null, 2)}\n`);
    }
    catch (error) {
        if (error instanceof UntrustedError)
            throw error;
        throw new InputError(`${pins.where}: cannot be written, to pin the publisher's key; give it as --key`);
    }
}
/** Return the text of the key that the bundle says it was signed with; an error unless it was. */
export async function claimed(host, manifest, claim) {
    signatureOf(claim);
    if (!claim.pem)
        throw new InputError(`${claim.where("manifest.pub")}: missing: the bundle does not say whose signature it has; give the publisher's key as --key`);
    const key = publicKey(claim.pem);
    if (!key)
        throw new InputError(`${claim.where("manifest.pub")}: not an Ed25519 public key, PEM or 32 raw bytes`);
    await checkOwner(host, manifest, claim, key, claim.where("manifest.pub"));
    return base64(key);
}
/** Throw unless the owner of `key` signed the manifest; `from` is what messages call the key. */
export async function checkOwner(host, manifest, claim, key, from) {
    if (!(await host.verify(key, signatureOf(claim), manifest))) {
        throw new InputError(`${claim.where("manifest.sig")}: not a signature of this manifest by ${from}: do not use the bundle`);
    }
}
/** Return the key that signed the bundle once this device trusts it, and whether it has been pinned just now, being the first. */
export async function checkPinned(host, manifest, claim, pins) {
    const key = await claimed(host, manifest, claim);
    const known = await pinned(pins);
    if (!known.length)
        await pin(pins, key);
    else if (!known.includes(key)) {
        const ask = "If its publisher is to be trusted, ask them for their key, compare, then trust it.";
        throw new UntrustedError(`${claim.where()}: signed by ${key}, this device trusts ${known.join(", ")} (${pins.where}). ${ask}`, key, known);
    }
    return { key, first: !known.length };
}
function signatureOf({ where, signature }) {
    if (signature)
        return signature;
    throw new UntrustedError(`${where()}: not signed, and a bundle is code: get a signed one (edgefl export signs); --allow-unsigned runs the bundle whoever made it`, null, []);
}
/** Return a name of a device or client; InputError if it is none. */
export function clientName(name) {
    if (/^[0-9A-Za-z._-]{1,64}$/.test(name))
        return name;
    throw new InputError(`got ${shown(name)}, expected 1 to 64 of 0-9 A-Z a-z . _ -`);
}
