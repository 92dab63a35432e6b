// Which bundles the page opens: those that a publisher signed whom this browser trusts. The first publisher's key is pinned for this site.

import { BundleProblem } from "./problems.js";

const PINS = "edgefl-trusted-keys";
const ONCE = "A bundle is code: its training graph decides what an update tells.";

/** Nobody whom this browser trusts signed the bundle; `key` is who did, null where that is not known. The person may decide otherwise. */
export class UntrustedProblem extends BundleProblem {
  constructor(message, key = null) {
    super(message);
    this.key = key;
  }
}

/** Return the key that signed `manifest` (bytes), once it is trusted; `signature` and `pem` are the bundle's own files, null if missing. */
export async function checkPublisher(manifest, signature, pem) {
  if (!signature || !pem) throw new UntrustedProblem(`The bundle is not signed. ${ONCE} Get a signed one: edgefl export signs.`);
  const key = await verified(manifest, signature, pem);
  const pins = pinned();
  if (!pins.length) trust(key);
  else if (!pins.includes(key)) {
    throw new UntrustedProblem(`The bundle is signed by ${key}, and this browser trusts ${pins.join(", ")}. ${ONCE} Compare the key with what its owner says.`, key);
  }
  return key;
}

/** Trust the publisher with this key from now on. */
export function trust(key) {
  try {
    localStorage.setItem(PINS, JSON.stringify([...new Set([...pinned(), key])]));
  } catch (error) {
    if (error instanceof BundleProblem) throw error;
    throw new UntrustedProblem(`This browser stores nothing for this page (${error.message}), so it cannot remember the publisher ${key}.`);
  }
}

/** Return the keys that this browser trusts. */
export function pinned() {
  let text = null;
  try {
    text = localStorage.getItem(PINS);
  } catch {
    // storing a key says why
  }
  if (text === null) return [];
  try {
    const keys = JSON.parse(text);
    if (Array.isArray(keys) && keys.length && keys.every((key) => typeof key === "string" && atob(key).length === 32)) return keys;
  } catch {
    // as any other text
  }
  throw new BundleProblem(`The keys that this browser trusts are damaged: remove ${PINS} from this site's data.`);
}

async function verified(manifest, signature, pem) {
  let key, der;
  try {
    der = Uint8Array.from(atob(new TextDecoder().decode(pem).replace(/-----[A-Z ]+-----|\s/g, "")), (c) => c.charCodeAt(0));
    key = await crypto.subtle.importKey("spki", der, { name: "Ed25519" }, true, ["verify"]);
  } catch (error) {
    if (error.name === "NotSupportedError") {
      throw new UntrustedProblem("This browser cannot check Ed25519 signatures; Chrome 137, Firefox 129, Safari 17 and later ones can. Who signed the bundle is not known.");
    }
    throw new BundleProblem("manifest.pub: not an Ed25519 public key. Get the bundle again.");
  }
  if (!(await crypto.subtle.verify({ name: "Ed25519" }, key, signature, manifest))) {
    throw new BundleProblem("manifest.sig: not the signature of this manifest.json by the owner of manifest.pub. Do not use the bundle.");
  }
  return btoa(String.fromCharCode(...new Uint8Array(await crypto.subtle.exportKey("raw", key))));
}
