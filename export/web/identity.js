// This device's own key, which signs its updates. The private half is in the browser's database, and scripts cannot read it.

import { enrolment } from "./core/state.js";
import { base64 } from "./core/text.js";
import { clientName } from "./core/trust.js";

const ALGORITHM = { name: "Ed25519" };
const [DATABASE, STORE, NAME] = ["edgefl", "keys", "device"];

/** Return this device's keys {privateKey, publicKey}, null if it has none. */
export async function deviceKeys() {
  try {
    return (await stored("readonly", (store) => store.get(NAME))) ?? null;
  } catch {
    return null; // a browser that stores nothing has no key either
  }
}

/** Return the request by which a server enrols this device under `name`: JSON. The key is made at the first request. */
export async function request(name) {
  try {
    clientName(name);
  } catch (error) {
    throw new Error(`Name of this device: ${error.message}`);
  }
  return enrolment(name, await signing((await deviceKeys()) ?? (await made())));
}

/** Return keys as what the core signs with. */
export async function signing(keys) {
  return {
    public: await publicText(keys),
    sign: async (content) => base64(new Uint8Array(await crypto.subtle.sign(ALGORITHM, keys.privateKey, content))),
  };
}

/** Return the public key as text: the base64 of its 32 bytes. */
export async function publicText({ publicKey }) {
  return base64(new Uint8Array(await crypto.subtle.exportKey("raw", publicKey)));
}

async function made() {
  let keys;
  try {
    keys = await crypto.subtle.generateKey(ALGORITHM, false, ["sign", "verify"]);
  } catch {
    throw new Error("This browser makes no Ed25519 keys, so its updates cannot be signed; Chrome 137, Firefox 129, Safari 17 and later ones can.");
  }
  await stored("readwrite", (store) => store.put({ privateKey: keys.privateKey, publicKey: keys.publicKey }, NAME));
  return keys;
}

function stored(mode, use) {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open(DATABASE, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
    opening.onerror = () => reject(new Error(`This browser does not store a key (${opening.error?.message}).`));
    opening.onsuccess = () => {
      const transaction = opening.result.transaction(STORE, mode);
      const asked = use(transaction.objectStore(STORE));
      transaction.oncomplete = () => resolve(asked.result);
      transaction.onabort = transaction.onerror = () => reject(new Error(`This browser does not store a key (${transaction.error?.message}).`));
    };
  });
}
