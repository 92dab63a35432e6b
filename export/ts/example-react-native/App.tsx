// An app that opens a bundle from a server, trains a tier on labelled samples, and makes the signed update.
// Compiled against the client's types in the project's tests, but not run by them.

import AsyncStorage from "@react-native-async-storage/async-storage";
import * as SecureStore from "expo-secure-store";
import * as ort from "onnxruntime-react-native";
import { useState } from "react";
import { Button, SafeAreaView, Text } from "react-native";
import "react-native-get-random-values";
import { type Bundle, type State, checkPinned, infer, readBundle, train, update } from "../lib/core/index.js";
import { base64, fromBase64 } from "../lib/core/text.js";
import { fetchedFiles, nativeHost, nativeKey, storedPins } from "../lib/native/host.js";

const BASE = "https://example.org/bundle/"; // where the bundle's folder is served
const TIER = "0.5";
const host = nativeHost(ort, ort.env.versions["react-native"] ?? "unknown");

/** Open the bundle once its publisher is trusted: the first one is pinned. */
async function opened(): Promise<Bundle> {
  const files = fetchedFiles(BASE);
  const part = (path: string) => files.read(path).catch(() => null);
  return readBundle(files, host, async (manifest) => {
    const claim = { where: files.where, signature: await part("manifest.sig"), pem: await part("manifest.pub") };
    await checkPinned(host, manifest, claim, storedPins(AsyncStorage));
  });
}

/** Return the device's key, which is made at its first use. */
async function deviceKey() {
  const stored = await SecureStore.getItemAsync("edgefl-device-key");
  const secret = (stored && fromBase64(stored)) || host.random(32);
  if (!stored) await SecureStore.setItemAsync("edgefl-device-key", base64(secret));
  return nativeKey(secret);
}

export default function App() {
  const [said, say] = useState("Not yet trained.");
  const [state, keep] = useState<State | null>(null);

  async function trainHere() {
    try {
      const bundle = await opened();
      // Your own samples: x as the network takes it, prepared as the manifest says, and y. Here: the tier's synthetic batch.
      const reference = await bundle.tensors(String(bundle.training(TIER).reference));
      const data = new Map([...reference].filter(([name]) => name !== "losses"));
      const after = await train(bundle, TIER, data, { epochs: 1 }, state);
      const probabilities = await infer(bundle, TIER, new Map([...data].filter(([name]) => name !== "y")), after);
      const content = await update(host, after, await deviceKey());
      keep(after); // personal tensors stay here; send only `content` to the server
      say(`Loss ${after.losses.at(-1)?.toFixed(4)} after ${after.losses.length} steps; ${probabilities.dims[0]} samples classified; update of ${content.length} bytes.`);
    } catch (error) {
      say(String(error instanceof Error ? error.message : error));
    }
  }

  return (
    <SafeAreaView>
      <Text>{said}</Text>
      <Button title="Train" onPress={() => void trainHere()} />
    </SafeAreaView>
  );
}
