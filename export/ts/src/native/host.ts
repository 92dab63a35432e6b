// What the core needs of React Native. onnxruntime-react-native comes from the app; cryptography is @noble's, which is plain JavaScript.

import { ed25519 } from "@noble/curves/ed25519.js";
import { sha256 } from "@noble/hashes/sha2.js";
import { randomBytes } from "@noble/hashes/utils.js";
import type { Files } from "../core/bundle.js";
import { InputError, firstLine } from "../core/problems.js";
import type { DeviceKey } from "../core/state.js";
import { base64 } from "../core/text.js";
import type { Pins } from "../core/trust.js";
import type { Host } from "../core/values.js";

/** Return the host for the app's `ort`, the module onnxruntime-react-native; `version` is for messages. */
export function nativeHost(ort: Host["ort"], version: string, options: Host["options"] = { executionProviders: ["cpu"] }): Host {
  return {
    ort,
    options,
    runtime: `onnxruntime ${version}`,
    sha256: async (content) => sha256(content),
    verify: async (key, signature, content) => {
      try {
        return ed25519.verify(signature, content, key);
      } catch {
        return false; // not of a signature's form
      }
    },
    now: () => performance.now() / 1000,
    random: (count) => randomBytes(count), // needs react-native-get-random-values
    watched: (_, work) => work(), // a person can end the app
  };
}

/** Return the files of a bundle at an address that ends in a slash. */
export function fetchedFiles(base: string): Files {
  return {
    where: (path = "") => path || "the bundle",
    read: async (path) => {
      let response;
      try {
        response = await fetch(base + path.split("/").map(encodeURIComponent).join("/"));
      } catch (error) {
        throw new InputError(`${path}: cannot be reached (${firstLine(error)})`);
      }
      if (!response.ok) throw new InputError(`${path}: missing from the bundle (the server answers ${response.status})`);
      return new Uint8Array(await response.arrayBuffer());
    },
  };
}

/** Return the pinned keys in a store of texts by name, such as React Native's AsyncStorage. */
export function storedPins(store: { getItem(name: string): Promise<string | null>; setItem(name: string, text: string): Promise<void> }): Pins {
  const where = "edgefl-trusted-keys";
  return { where, read: () => store.getItem(where), write: (text) => store.setItem(where, text) };
}

/** Return the device's key with a secret of 32 bytes, which the app keeps in the phone's key store. */
export function nativeKey(secret: Uint8Array): DeviceKey {
  return { public: base64(ed25519.getPublicKey(secret)), sign: async (content) => base64(ed25519.sign(content, secret)) };
}
