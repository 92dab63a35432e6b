import type { Files } from "../core/bundle.js";
import type { DeviceKey } from "../core/state.js";
import type { Pins } from "../core/trust.js";
import type { Host } from "../core/values.js";
/** Return the host for the app's `ort`, the module onnxruntime-react-native; `version` is for messages. */
export declare function nativeHost(ort: Host["ort"], version: string, options?: Host["options"]): Host;
/** Return the files of a bundle at an address that ends in a slash. */
export declare function fetchedFiles(base: string): Files;
/** Return the pinned keys in a store of texts by name, such as React Native's AsyncStorage. */
export declare function storedPins(store: {
    getItem(name: string): Promise<string | null>;
    setItem(name: string, text: string): Promise<void>;
}): Pins;
/** Return the device's key with a secret of 32 bytes, which the app keeps in the phone's key store. */
export declare function nativeKey(secret: Uint8Array): DeviceKey;
