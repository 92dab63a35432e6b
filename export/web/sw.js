// Keeps the page and onnxruntime for use without a network. The bundle's files are stored by the page, once they were checked.

const CACHE = "edgefl-page-1.30.0"; // with onnxruntime-web's version: another one is stored anew
const PAGE = [
  "./", "index.html", "style.css", "icon.svg", "app.js", "batches.js", "bundle.js", "chart.js", "device-view.js", "dom.js", "engine.js", "identity.js",
  "input-view.js", "measure-view.js", "measurement.js", "model.js", "npz.js", "pad.js", "preprocess.js", "problems.js", "safetensors.js", "samples.js",
  "timing.js", "trainer.js", "training-view.js", "trust.js", "worker.js",
  "ort/ort.wasm.min.mjs", "ort/ort-wasm-simd-threaded.mjs", "ort/ort-wasm-simd-threaded.wasm",
];

self.addEventListener("install", (event) => {
  const requests = PAGE.map((path) => new Request(path, { cache: "no-cache" }));
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(requests)).then(() => self.skipWaiting()));
});

self.addEventListener("activate", (event) => {
  event.waitUntil(forgetOthers().then(() => self.clients.claim()));
});

// The network first: a page that is there is never older than the server's.
self.addEventListener("fetch", (event) => {
  if (event.request.method === "GET" && new URL(event.request.url).origin === self.location.origin) event.respondWith(answer(event.request));
});

async function forgetOthers() {
  for (const name of await caches.keys()) if (name.startsWith("edgefl-page-") && name !== CACHE) await caches.delete(name);
}

async function answer(request) {
  try {
    const response = await fetch(request);
    const path = request.url.slice(self.registration.scope.length) || "./";
    const changes = PAGE.includes(path) && !path.startsWith("ort/");
    if (response.status === 200 && changes) await (await caches.open(CACHE)).put(request, response.clone());
    return response;
  } catch (error) {
    const stored = await caches.match(request, { ignoreSearch: true });
    if (stored) return stored;
    throw error;
  }
}
