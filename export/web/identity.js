// This device's own key, which signs its updates. The private half is in the browser's database, and scripts cannot read it.

const ALGORITHM = { name: "Ed25519" };
const [DATABASE, STORE, NAME] = ["edgefl", "keys", "device"];
const utf8 = (text) => new TextEncoder().encode(text);

/** Return this device's keys {privateKey, publicKey}, null if it has none. */
export async function deviceKeys() {
  try {
    return (await stored("readonly", (store) => store.get(NAME))) ?? null;
  } catch {
    return null; // a browser that stores nothing has no key either
  }
}

/** Return the request by which a server enrols this device under `name`: JSON. The key is made at the first request. */
export async function enrolment(name) {
  if (!/^[0-9A-Za-z._-]{1,64}$/.test(name)) throw new Error(`Name of this device: ${name || "nothing"}, expected 1 to 64 of 0-9 A-Z a-z . _ -`);
  const keys = (await deviceKeys()) ?? (await made());
  const key = await publicText(keys);
  const signature = await signed(keys, `edgefl enrolment 1\nname=${name}\nkey=${key}\n`);
  return `${JSON.stringify({ format: "edgefl-enrolment", version: "1", name, key, signature }, null, 2)}\n`;
}

/** Return the metadata `about` of an update with the key and the signature of all metadata and `tensors` (name → {dims, data}). */
export async function signedMetadata(about, tensors, keys) {
  const found = { ...about, key: await publicText(keys) };
  const lines = Object.keys(found).sort().map((name) => `${name}=${found[name]}`);
  const text = ["edgefl update signature 1", ...lines, `content=${await contentSha256(tensors)}`].map((line) => `${line}\n`).join("");
  return { ...found, signature: await signed(keys, text) };
}

/** Return the SHA-256 of tensors by the bytes of their names: name, zero byte, shape as 2,3, zero byte, float32 values. */
export async function contentSha256(tensors) {
  const parts = [];
  for (const name of byBytes([...tensors.keys()])) {
    const { dims, data } = tensors.get(name);
    parts.push(utf8(`${name}\0${Array.from(dims).join(",")}\0`), new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  }
  const digest = await crypto.subtle.digest("SHA-256", await new Blob(parts).arrayBuffer());
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return the public key as text: the base64 of its 32 bytes. */
export async function publicText({ publicKey }) {
  return base64(await crypto.subtle.exportKey("raw", publicKey));
}

function byBytes(names) {
  const hex = (name) => Array.from(utf8(name), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return names.map((name) => [hex(name), name]).sort(([a], [b]) => (a < b ? -1 : 1)).map(([, name]) => name);
}

async function signed({ privateKey }, text) {
  return base64(await crypto.subtle.sign(ALGORITHM, privateKey, utf8(text)));
}

function base64(buffer) {
  return btoa(String.fromCharCode(...new Uint8Array(buffer)));
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
      const request = use(transaction.objectStore(STORE));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = transaction.onerror = () => reject(new Error(`This browser does not store a key (${transaction.error?.message}).`));
    };
  });
}
