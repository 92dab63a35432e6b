// What the core needs of a browser, besides onnxruntime: cryptography, a clock, random bytes.

import { InputError, UntrustedError } from "./core/problems.js";

const ED25519 = { name: "Ed25519" };
const NO_ED25519 = "This browser cannot check Ed25519 signatures; Chrome 137, Firefox 129, Safari 17 and later ones can. Who signed the bundle is not known.";

export const host = {
  runtime: "onnxruntime-web",
  options: {},
  async sha256(content) {
    if (!globalThis.crypto?.subtle) {
      throw new InputError("This browser gives no cryptography to a page over plain http from another computer: open it at http://localhost or over https.");
    }
    return new Uint8Array(await crypto.subtle.digest("SHA-256", content));
  },
  async verify(key, signature, content) {
    try {
      return await crypto.subtle.verify(ED25519, await crypto.subtle.importKey("raw", key, ED25519, false, ["verify"]), signature, content);
    } catch (error) {
      throw error.name === "NotSupportedError" ? new UntrustedError(NO_ED25519, null, []) : error;
    }
  },
  now: () => performance.now() / 1000,
  random: (count) => crypto.getRandomValues(new Uint8Array(count)),
  watched: (_, work) => work(), // a person can stop the page
};

/** Return deflated bytes as they were; an Error if they are more than `mostBytes`. */
export async function inflate(content, mostBytes) {
  const reader = new Blob([content]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  const parts = [];
  let size = 0;
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    parts.push(part.value);
    size += part.value.length;
    if (size > mostBytes) throw new Error("larger than it says when unpacked");
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}
