// A bundle at an address: the core checks it, the browser stores what was checked for use without a network.

import { Bundle, readBundle } from "./core/bundle.js";
import { InputError } from "./core/problems.js";
import { checkFresh } from "./core/rounds.js";
import { checkPinned } from "./core/trust.js";
import { host } from "./host.js";
import { pins, rounds } from "./trust.js";

const CACHE = "edgefl-bundle-";
const FRESHNESS = "freshness.json";

/** Fetch and check the manifest at `base` (a URL that ends in a slash), and who signed it; `unchecked` leaves the publisher out. */
export async function openBundle(base, unchecked = false) {
  const found = {};
  let signer = null;
  const check = async (content) => {
    found["manifest.json"] = content;
    if (unchecked) return;
    const parts = { "manifest.sig": await optional(base, "manifest.sig"), "manifest.pub": await optional(base, "manifest.pub") };
    const claim = { where: filesAt(base).where, signature: parts["manifest.sig"], pem: parts["manifest.pub"] };
    signer = (await checkPinned(host, content, claim, pins)).key;
    Object.assign(found, parts);
  };
  const read = await readBundle(filesAt(base), host, check);
  const { manifest } = read;
  if (signer !== null) await checkFresh(read, signer, rounds);
  if (manifest.files[FRESHNESS]) found[FRESHNESS] = await read.content(FRESHNESS); // for use without a network
  if (manifest.inputs) {
    const names = Object.keys(manifest.inputs).join(", ");
    throw new InputError(`The network takes several inputs (${names}), and this page runs networks with one. Use client/python/edgefl_client.py.`);
  }
  if ("target_shape" in manifest) {
    throw new InputError("The network is a regression, and this page runs classifiers. Use client/python/edgefl_client.py.");
  }
  const bundle = new PageBundle(base, manifest, host, signer);
  for (const [path, content] of Object.entries(found)) await bundle.store(path, content);
  await bundle.forgetOthers().catch(() => {});
  return bundle;
}

export class PageBundle extends Bundle {
  constructor(base, manifest, around, signer = null) {
    super(filesAt(base), manifest, around);
    Object.assign(this, { base, signer, downloadedBytes: 0 }); // signer: the key of the publisher, null if it was not checked
  }

  /** The paths that the page may need of a tier. */
  static paths({ forward, reference, train }) {
    return [forward, reference, ...(train ? [train.parameters, ...train.graphs, train.predict, train.reference] : [])];
  }

  /** Return the content of a file once length and SHA-256 are the manifest's, and store it. */
  async content(path) {
    const content = await super.content(path);
    this.downloadedBytes += content.byteLength;
    await this.store(path, content);
    return content;
  }

  get cache() {
    return CACHE + this.manifest.manifest_sha256;
  }

  /** Keep a checked file for use without a network; a store that is full or forbidden is no error. */
  async store(path, content) {
    try {
      const headers = { "Content-Type": path.endsWith(".json") ? "application/json" : "application/octet-stream", "Content-Length": String(content.byteLength) };
      await (await caches.open(this.cache)).put(address(this.base, path), new Response(content, { headers }));
    } catch (error) {
      console.info(`${path}: not stored (${error.message})`);
    }
  }

  /** Drop what is stored of other bundles. */
  async forgetOthers() {
    for (const name of await caches.keys()) if (name.startsWith(CACHE) && name !== this.cache) await caches.delete(name);
  }

  /** Store what every tier needs, so that all of them work without a network. Returns the bytes stored; throws what stops it. */
  async storeAll() {
    const cache = await caches.open(this.cache);
    const wanted = [...new Set(this.tiers.flatMap(PageBundle.paths))];
    for (const path of wanted) if (!(await cache.match(address(this.base, path)))) await this.content(path);
    for (const path of wanted) if (!(await cache.match(address(this.base, path)))) throw new Error("the browser stores no more");
    return wanted.reduce((sum, path) => sum + this.manifest.files[path].bytes, 0);
  }
}

function filesAt(base) {
  return { where: (path = "") => path || "the bundle", read: (path) => fetched(base, path) };
}

function address(base, path) {
  return new URL(path.split("/").map(encodeURIComponent).join("/"), base).href;
}

async function fetched(base, path) {
  let response;
  try {
    response = await fetch(address(base, path));
  } catch {
    throw new InputError(`${path}: cannot be reached, and is not stored for use without a network.`);
  }
  if (response.status === 409) throw new InputError(`${path}: changed since the server started: end \`edgefl serve\` and start it again.`);
  if (!response.ok) throw new InputError(`${path}: missing from the bundle (the server answers ${response.status}).`);
  return new Uint8Array(await response.arrayBuffer());
}

/** Return a file's bytes, null where there is none. */
async function optional(base, path) {
  try {
    return await fetched(base, path);
  } catch {
    return null;
  }
}
