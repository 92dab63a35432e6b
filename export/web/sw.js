// Keeps the page and onnxruntime for use without a network. The bundle's files are stored by the page, once they were checked.
// tools/page_files.py writes VERSION, FILES and LATER: another file makes another version, which is stored whole or not at all. Files of LATER
// are stored when they are first asked for.

const VERSION = "06e1e8bcb1f52f34";
const FILES = {
  "./": "sha256-lNWemzhpLNpBW14h3H4m3KwsAVk36QDSaXzi7GBxnbg=",
  "app.js": "sha256-wgKxPsrZ+rVYl9rph4Jk7MNCp9Z3A0QxWWUa8AvcMZQ=",
  "bundle.js": "sha256-XpWEiIF3mEa0N21XpmGxUf/hVFvZLzPEZzzBiYJSt+U=",
  "chart.js": "sha256-r3h4tE4yXoXAQ5h1CUcRWyZ7kRCIj7pDRCM+XaNK+rA=",
  "core/bundle.js": "sha256-BwNAW5CC2xbPkiI7u1w9Ig2nfygCAWomAWnQuYpYTkw=",
  "core/checks.js": "sha256-Z7q0I60Mv3V+084vzpTyR1iXeznO6dt/KT+DosFlfGQ=",
  "core/data.js": "sha256-9A9UWosNRmj8Ir/3cy9OTM6NlkrNoLXbiDajzxjSJs0=",
  "core/graph.js": "sha256-O5W9PWOzYwUZBNFRhTNadX2/ny5B5xMoROQiRJojCmU=",
  "core/index.js": "sha256-gW6nvjhALTn7FYWWOc6bSByp/DAP+IF4G/FAiTt0fcM=",
  "core/npz.js": "sha256-w2AQdV1HQYnaZfaTvsreDC757IEH538gnGuVh2FVExE=",
  "core/objective.js": "sha256-MTmRvjRYywLeYYC7WKi3OdiFTaBy49jeS8Ai0P4ilS0=",
  "core/order.js": "sha256-zduIk1IsPxoQAXeqMbsXjUN1q664nQWPHtIRvFn5ctw=",
  "core/problems.js": "sha256-02f7uLa55DxdO+qacjeKn7gf3ghs2rrYzqdSjucsDo8=",
  "core/progress.js": "sha256-8aigvIjYHeDvxagIVw7Tls7XDIZSDNt7kcWsqjHSBTQ=",
  "core/random.js": "sha256-XVLLuQ4WC8kWIfO+vi8zyNqxeJcVAiYdb4Tt5ehi0Lw=",
  "core/rounds.js": "sha256-SB6OlAxuTOyD1UwmjU6wqZsJcrrX/v+WdQO5IlniP9E=",
  "core/run.js": "sha256-wtWWjpRd+JzxPTLP7yQWSu8/9DOCMBup2tozuAKR8LY=",
  "core/safetensors.js": "sha256-1v9K7keQKHwkzkZ5n4akI4Yem9PHH/xTjs2VcudQroQ=",
  "core/settings.js": "sha256-KLOTZagTH9LvF53y2ej9wqqfvo32DWu5A8QdGVUsrVE=",
  "core/state.js": "sha256-KyjzBXoFMzG9ET/ggi47EY33m50ahLhNouxGxsM3zT8=",
  "core/table.js": "sha256-Z2YYeBdYDveuyX1V1CFZuEE3YfyZZuqdYYH+mzyJHns=",
  "core/text.js": "sha256-EyTCD5mkgmYszy+6aSEgLhTTA/2WWyk+sKaX3Xl4kzc=",
  "core/train.js": "sha256-eMN9EU9OZZtdXQQig3wW+WyHv6Wg1ATwjpeMobvhXzU=",
  "core/trainer.js": "sha256-mZH9Zyuv6ME5Qs3exqtVubcXcQAGAPGz+tOFft1brj0=",
  "core/trust.js": "sha256-S+ExTSJaoNIy/1FtGp0xKC8eR0KJN16eDUQ+kc30uzg=",
  "core/values.js": "sha256-pLoZgdr9NTk/jye4mvXSaTzm+FFrauCwpVZW0JGaR84=",
  "device-view.js": "sha256-g8hySx24j8gF4jjkkcqeazrGI3d5s4fzDTu+C7xNHkU=",
  "dom.js": "sha256-TLtUMJt7pFts4xCx8mU27kR1xVTz1tJjyCHHq82kOsg=",
  "engine.js": "sha256-oRHZtnGCcFJPY5PvfSqiDJ1g1WhhRehXWdgh+nyKUjI=",
  "host.js": "sha256-mSNYr2ZT6Rbzq6FJChwQ/RCvQQZ+7j2DfK3SFLJlT5s=",
  "icon-192.png": "sha256-aD0Qbk41mRCNa3Jv6CZ3eIZc4OUmiybVbcVTBYVMqVE=",
  "icon-512.png": "sha256-O9yv+e1lXpaHH04caDMmWzdYzpPwl0X24BrBsrTPBSE=",
  "icon-maskable.png": "sha256-+XPIWcmVavSFRpjqNu9dHN89m71YBYmb3NB7tn2/dU8=",
  "icon.svg": "sha256-Bv0kCXQBoQQDy/ahMWIqPavutE1TPYq4UGp5DWkkY4A=",
  "identity.js": "sha256-PEQrrfYjv63AieBjLKRvBqIem/XpCkdMCir+TrCLzoU=",
  "index.html": "sha256-lNWemzhpLNpBW14h3H4m3KwsAVk36QDSaXzi7GBxnbg=",
  "input-view.js": "sha256-y3Uh3TpOKu5Lwdt1In3t3J2f9gQZ7Tz3b9Zz+P8mu/0=",
  "manifest.webmanifest": "sha256-y6XNaFco2Kd8BrfnVvC5w3WuvgAfDdnxDf+LgqDSDss=",
  "measure-view.js": "sha256-JKP43+UDpvCPtXSdsv7tBSNLShR3Afu/eiIjR2h8jqQ=",
  "measurement.js": "sha256-cKABp4GigZhgM50WmFwE4FIXJSbeWHXKrk26MD/baZ4=",
  "model.js": "sha256-vfsSkkmNMYGpiQUuzXZKgnEGblDf4ag5RcYh6MMWZEI=",
  "offline.js": "sha256-KPNuRJbE0csPmCw9VrhXfD9j+9y11MStUtN2akAUibk=",
  "ort/ort-wasm-simd-threaded.mjs": "sha256-4T9/lPxRtMpysS+use6V9Kzm37yJObxxiqvcCifEKZs=",
  "ort/ort-wasm-simd-threaded.wasm": "sha256-M5jBDQfSKb2Rs2RUjhMODlGo5XBLiMfAg+u+t4hC3uI=",
  "ort/ort.wasm.min.mjs": "sha256-IZ5qH8ipk4Jo0Y78o8kdMQvS9KWbvRN0TfWyt/xs7js=",
  "pad.js": "sha256-VflV7iOjCrr7tJ7GjRz3TidKLzhyMH8f2E8ouyXNYZ4=",
  "preprocess.js": "sha256-9Bi+MRfpkHv03JkveFHSrZq8Nfz20JQ4M3ywWTzUxYE=",
  "samples.js": "sha256-2F4qd/bkqmOwTR4dxZcpOAGqjPh91e7m/1ENUd421eU=",
  "style.css": "sha256-bTV8PHgLhR93FBMeE+3mbUv+V/Z654mh+D7WBMgkXeo=",
  "timing.js": "sha256-9rVQ8w6+V+Y6tKRXU+osVtOk3cqeV3dvRBEXY4HJsyM=",
  "training-view.js": "sha256-vrns99WSuoHnBu2HLkQHSGKAsg78wc+POLDtpyBLeSA=",
  "trust.js": "sha256-/EJvVD+Ygyqmbe/6k5PIHK/BCwPDWpqI1G9PeQcXYyM=",
  "work.js": "sha256-lM2kDnadidfinalUB2TeUR93HxsIKTDQs3dOroww43w=",
  "worker-gpu.js": "sha256-qsKvpKZxwiY75SsEFdY9umdQ6jF7ny9JLbuRCt9Pep4=",
  "worker.js": "sha256-CvsBQbzThx0vtT9Z2TTh+sO6OKFI06oWHRZnB8qFEOg="
};
const LATER = {
  "ort/ort-wasm-simd-threaded.asyncify.mjs": "sha256-PRyFmVNku2QzAvxv2Hegw7pa5yQBgV4PJIKKU9kZHig=",
  "ort/ort-wasm-simd-threaded.asyncify.wasm": "sha256-OfnwiU1HiABIftn32+kmGEmNsyDPVcjj2Jrf+NzmWNo=",
  "ort/ort.webgpu.min.mjs": "sha256-Pf//cYEbwTo6PZWRxXyl7lc1uPXz6veJUQsCuwQK46A="
};

const CACHE = `edgefl-page-${VERSION}`;

self.addEventListener("install", (event) => {
  const requests = Object.entries(FILES).map(([path, integrity]) => new Request(path, { cache: "no-cache", integrity }));
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
    const integrity = LATER[request.url.slice(self.registration.scope.length)];
    const response = await fetch(request, { cache: "no-cache", ...(integrity && { integrity }) });
    if (integrity && response.status === 200) await (await caches.open(CACHE)).put(request, response.clone());
    return response;
  } catch (error) {
    const stored = (await caches.match(request, { cacheName: CACHE, ignoreSearch: true })) ?? (await ofBundle(request));
    if (stored) return stored;
    throw error;
  }
}

async function ofBundle(request) {
  for (const cacheName of await caches.keys()) {
    const stored = cacheName.startsWith("edgefl-bundle-") && (await caches.match(request, { cacheName, ignoreSearch: true }));
    if (stored) return stored;
  }
  return undefined;
}
