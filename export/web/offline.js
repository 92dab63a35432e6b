// The page as an app: installed where the browser allows it, and stored for use without a network.

import { $, bytes, plural } from "./dom.js";

/** Offer to install the page where the browser allows it. */
addEventListener("beforeinstallprompt", (event) => {
  event.preventDefault();
  $("install").hidden = false;
  $("install").onclick = async () => {
    $("install").hidden = true;
    await event.prompt();
  };
});

/** Keep the page and onnxruntime for use without a network. */
export async function storePage() {
  if (!("serviceWorker" in navigator)) return null;
  try {
    await navigator.serviceWorker.register(new URL("./sw.js", import.meta.url), { type: "module" });
    return await navigator.serviceWorker.ready;
  } catch (error) {
    console.info(`not stored for use without a network: ${error.message}`);
    return null;
  }
}

/** Keep the bundle's tiers too, and say so. */
export async function storeBundle(bundle) {
  try {
    if (!navigator.serviceWorker?.controller && !(await navigator.serviceWorker?.ready)) throw new Error("no service worker");
    const stored = await bundle.storeAll();
    $("offline").textContent = `Stored: works without a network from now on, all ${plural(bundle.manifest.tiers.length, "tier")} (${bytes(stored)}).`;
    document.documentElement.dataset.stored = "yes";
  } catch (error) {
    $("offline").textContent = `Not stored for use without a network: ${error.message}.`;
  }
}
