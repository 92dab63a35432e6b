// A bundle as the page reads it: its publisher is trusted, the manifest has its own hash, every file has the manifest's; nothing is used before.

import { BundleProblem } from "./problems.js";
import { checkPublisher } from "./trust.js";

const FORMAT_VERSION = 2;
const UNSEALED = "0".repeat(64);
const CACHE = "edgefl-bundle-";

/** Fetch and check the manifest at `base` (a URL that ends in a slash), and who signed it; `unchecked` leaves the publisher out. */
export async function openBundle(base, unchecked = false) {
  if (!globalThis.crypto?.subtle) {
    throw new BundleProblem("This browser gives no cryptography to a page over plain http from another computer: open it at http://localhost or over https.");
  }
  const content = await fetched(base, "manifest.json");
  const signature = unchecked ? {} : { "manifest.sig": await optional(base, "manifest.sig"), "manifest.pub": await optional(base, "manifest.pub") };
  const signer = unchecked ? null : await checkPublisher(content, signature["manifest.sig"], signature["manifest.pub"]);
  const manifest = parsed(content);
  const own = manifest.manifest_sha256;
  const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(content);
  if ((await sha256(new TextEncoder().encode(text.replace(own, UNSEALED)))) !== own) {
    throw new BundleProblem("manifest.json: changed: its SHA-256 is not its manifest_sha256. Get the bundle again.");
  }
  const bundle = new Bundle(base, manifest, signer);
  await bundle.store("manifest.json", content, "application/json");
  for (const [path, part] of Object.entries(signature)) await bundle.store(path, part, "application/octet-stream");
  await bundle.forgetOthers().catch(() => {});
  return bundle;
}

function parsed(content) {
  let manifest;
  try {
    manifest = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(content));
  } catch (error) {
    throw new BundleProblem(`manifest.json: not valid JSON (${error.message}).`);
  }
  const version = manifest?.format_version;
  if (version !== FORMAT_VERSION) {
    throw new BundleProblem(`manifest.json: format_version ${JSON.stringify(version)}, expected ${FORMAT_VERSION}: made by another version of edgefl.`);
  }
  const types = { manifest_sha256: "string", files: "object", classes: "number", preprocessing: "object" };
  for (const [key, type] of Object.entries(types)) {
    if (typeof manifest[key] !== type || manifest[key] === null) throw new BundleProblem(`manifest.json: ${key}: expected a value of type ${type}.`);
  }
  if (manifest.inputs) {
    const names = Object.keys(manifest.inputs).join(", ");
    throw new BundleProblem(`The network takes several inputs (${names}), and this page runs networks with one. Use client/python/edgefl_client.py.`);
  }
  for (const key of ["tiers", "class_names", "input_shape"]) {
    if (!Array.isArray(manifest[key]) || !manifest[key].length) throw new BundleProblem(`manifest.json: ${key}: expected a list that is not empty.`);
  }
  return manifest;
}

class Bundle {
  constructor(base, manifest, signer) {
    this.base = base;
    this.manifest = manifest;
    this.signer = signer; // the key of the publisher, null if it was not checked
    this.downloadedBytes = 0;
  }

  /** The paths that the page may need of a tier, in the order in which it needs them. */
  static paths(tier) {
    const train = tier.train;
    return [tier.forward, tier.reference, ...(train ? [train.parameters, ...train.graphs, train.predict, train.reference] : [])];
  }

  /** Return the bytes of a file once length and SHA-256 are the manifest's; `counted` ones are a cost of the tier in use. */
  async file(path, counted = true) {
    const entry = Object.hasOwn(this.manifest.files, path) ? this.manifest.files[path] : null;
    if (!entry) throw new BundleProblem(`${path}: not among the manifest's files.`);
    if (/^\/|\\|:|\0/.test(path) || path.split("/").includes("..")) throw new BundleProblem(`${path}: leaves the bundle.`);
    const content = await fetched(this.base, path);
    if (content.byteLength !== entry.bytes) throw new BundleProblem(`${path}: ${content.byteLength} bytes, the manifest says ${entry.bytes}. It was not used.`);
    if ((await sha256(content)) !== entry.sha256) throw new BundleProblem(`${path}: changed: its SHA-256 is not the manifest's. It was not used.`);
    if (counted) this.downloadedBytes += content.byteLength;
    await this.store(path, content, "application/octet-stream");
    return content;
  }

  get cache() {
    return CACHE + this.manifest.manifest_sha256;
  }

  /** Keep a checked file for use without a network; a store that is full or forbidden is no error. */
  async store(path, content, type) {
    try {
      const headers = { "Content-Type": type, "Content-Length": String(content.byteLength) };
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
    const wanted = [...new Set(this.manifest.tiers.flatMap(Bundle.paths))];
    for (const path of wanted) if (!(await cache.match(address(this.base, path)))) await this.file(path, false);
    for (const path of wanted) if (!(await cache.match(address(this.base, path)))) throw new Error("the browser stores no more");
    return wanted.reduce((sum, path) => sum + this.manifest.files[path].bytes, 0);
  }
}

function address(base, path) {
  return new URL(path.split("/").map(encodeURIComponent).join("/"), base).href;
}

async function fetched(base, path) {
  let response;
  try {
    response = await fetch(address(base, path));
  } catch {
    throw new BundleProblem(`${path}: cannot be reached, and is not stored for use without a network.`);
  }
  if (response.status === 409) throw new BundleProblem(`${path}: changed since the server started: end \`edgefl serve\` and start it again.`);
  if (!response.ok) throw new BundleProblem(`${path}: missing from the bundle (the server answers ${response.status}).`);
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

async function sha256(content) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", content));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
