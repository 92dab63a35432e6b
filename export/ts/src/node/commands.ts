// The commands of the client on a computer with Node: the same as those of edgefl_client.py.

import { existsSync, rmSync, statSync } from "node:fs";
import { basename, dirname, extname, join } from "node:path";
import { type Bundle, readBundle } from "../core/bundle.js";
import { readSamples } from "../core/data.js";
import { InputError, printable } from "../core/problems.js";
import type { Store } from "../core/progress.js";
import { checkFresh } from "../core/rounds.js";
import { infer } from "../core/run.js";
import { type DeviceKey, type State, enrolment, readState, stateBytes, update } from "../core/state.js";
import { readArray, readTable } from "../core/table.js";
import { train } from "../core/train.js";
import { base64 } from "../core/text.js";
import { type OnStep, plannedSteps, settled } from "../core/settings.js";
import { checkOwner, checkPinned, claimed, pin, publicKey } from "../core/trust.js";
import type { Value } from "../core/values.js";
import { type Given } from "./arguments.js";
import { bundleFiles, claimOf, configFolder, contentOf, deviceKey, filePins, fileRounds, madeKey, reason, write } from "./files.js";
import { inflate, nodeHost } from "./host.js";

export interface Output {
  out(text: string): void;
  error(text: string): void;
  watch(what: string | null): void;
}

/** Run one command; errors are thrown. */
export async function run(given: Given, say: Output): Promise<void> {
  await COMMANDS[given.command](given, say);
}

const COMMANDS: Record<Given["command"], (given: Given, say: Output) => Promise<void>> = {
  async infer(given, say) {
    const bundle = await trusted(given, say);
    const data = await samplesIn(given.data, bundle, false);
    const found = await infer(bundle, given.tier, data, stateIn(given.state), given.variant);
    const width = found.dims[1] ?? 1;
    const rows = Array.from({ length: found.dims[0] ?? 0 }, (_, i) => Array.from(found.data.subarray(i * width, (i + 1) * width), Number));
    if (Object.hasOwn(bundle.manifest, "target_shape")) {
      rows.forEach((row, number) => say.out([number, ...row.map((value) => Number(value.toPrecision(6)))].join("\t") + "\n"));
      const targets = Array.from(data.get("y")?.data ?? [], Number);
      if (!targets.length || targets.length !== rows.length * width) return;
      const squares = rows.flat().map((value, i) => (value - (targets[i] ?? 0)) ** 2);
      say.out(`mean squared error: ${Number((squares.reduce((sum, square) => sum + square, 0) / squares.length).toPrecision(6))} of ${rows.length} samples\n`);
      return;
    }
    const best = rows.map((row) => row.indexOf(Math.max(...row)));
    const names = bundle.manifest.class_names as string[];
    rows.forEach((row, number) => say.out(`${number}\t${printable(names[best[number] ?? 0] ?? "")}\t${(row[best[number] ?? 0] ?? 0).toFixed(4)}\n`));
    const y = data.get("y");
    if (y) say.out(`accuracy: ${(best.filter((label, i) => label === Number(y.data[i])).length / rows.length).toFixed(4)} of ${rows.length} samples\n`);
  },

  async train(given, say) {
    checkFolder(given.out);
    const bundle = await trusted(given, say);
    const data = await samplesIn(given.data, bundle, true);
    const how = settled(given.settings, bundle.tier(given.tier), bundle.training(given.tier));
    const planned = plannedSteps(how, data.get("y")?.dims[0] ?? 0);
    const after = await train(bundle, given.tier, data, given.settings, stateIn(given.state), given.client, said(given, planned, say), storeIn(given));
    write(given.out, stateBytes(after));
    if (after.note) say.error(`${after.note}\n`);
    if (given.checkpoint) rmSync(given.checkpoint, { force: true });
    const { losses, seconds } = after;
    const part = Math.max(1, Math.floor(losses.length / 4));
    const [first, last] = [losses.slice(0, part), losses.slice(-part)].map((some) => (some.reduce((sum, loss) => sum + loss, 0) / some.length).toFixed(4));
    const limit = Number(how.maxSeconds.toPrecision(3));
    const early = losses.length < planned ? `stopped after ${losses.length} of ${planned} steps: the limit is ${limit} s (--max-seconds)\n` : "";
    say.out(`${losses.length} steps in ${seconds.toFixed(2)} s; loss ${first} at first, ${last} at the end\n${early}${given.out}: written\n`);
  },

  async update(given, say) {
    checkFolder(given.out);
    const key = keyFor(given);
    const content = await update(nodeHost(), stateIn(given.state) as State, key);
    write(given.out, content);
    say.out(`${given.out}: written, ${content.length.toLocaleString("en")} bytes, ${key ? `signed by ${key.public}` : "not signed"}\n`);
  },

  async enroll(given, say) {
    checkFolder(given.out);
    const path = given.deviceKey || ownKey();
    const key = madeKey(path);
    write(given.out, Buffer.from(await enrolment(given.name, key)));
    say.out(`${path}: the key of this device, which signs its updates; its public half: ${key.public}\n`);
    say.out(`${given.out}: written, for the server: edgefl enroll ${given.out.split("/").at(-1)} --keys KEYS\n`);
  },

  async trust(given, say) {
    const host = nodeHost();
    let key = "";
    await readBundle(bundleFiles(given.bundle), host, async (manifest) => {
      key = await claimed(host, manifest, claimOf(given.bundle));
    });
    await pin(filePins(), key);
    say.out(`${given.bundle}: signed by ${key}, which this device trusts from now on (${filePins().where})\n`);
  },
};

/** Return the bundle once its publisher is known to be trusted. */
async function trusted({ bundle: folder, key, allowUnsigned, allowOlder, threads }: Given, say: Output): Promise<Bundle> {
  const host = nodeHost(threads, say.watch);
  let publisher = "";
  const bundle = await readBundle(bundleFiles(folder), host, async (manifest) => {
    if (allowUnsigned) return;
    if (!key) {
      const pins = filePins();
      const found = await checkPinned(host, manifest, claimOf(folder), pins);
      publisher = found.key;
      if (found.first) say.error(`${folder}: signed by ${found.key}; pinned in ${pins.where}: the first publisher that this device meets; 'trust' adds others\n`);
      return;
    }
    const owner = publicKey(contentOf(key, "expected a public key"));
    if (!owner) throw new InputError(`${key}: not an Ed25519 public key, PEM or 32 raw bytes`);
    await checkOwner(host, manifest, claimOf(folder), owner, key);
    publisher = base64(owner);
  });
  if (publisher && !allowOlder) await checkFresh(bundle, publisher, fileRounds());
  return bundle;
}

async function samplesIn(path: string, { manifest }: Bundle, labels: boolean): Promise<Map<string, Value>> {
  const ending = extname(path).toLowerCase();
  if (IMAGES.includes(ending) || statSync(path, { throwIfNoEntry: false })?.isDirectory()) {
    throw new InputError(`${path}: images, which this client does not read: expected ${FILES}; edgefl_client.py reads images`);
  }
  if (![".npz", ".npy", ".csv"].includes(ending)) throw new InputError(`${path}: files ${ending} are not read; expected ${FILES}`);
  const content = contentOf(path, `expected ${FILES}`);
  if (ending === ".npz") return readSamples(path, content, manifest, labels, inflate);
  if (ending === ".csv") return readTable(path, content, manifest, labels);
  const beside = join(dirname(path), "y.npy");
  const y = basename(path) !== "y.npy" && existsSync(beside) ? { path: beside, content: contentOf(beside, `expected ${FILES}`) } : null;
  return readArray(path, content, y, manifest, labels);
}

const FILES = "a file .npz, .npy or .csv";
const IMAGES = [".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".heic", ""];

/** Return what says a line for each step on standard error, as `--progress` asks for. */
function said({ progress }: Given, steps: number, say: Output): OnStep | undefined {
  if (progress === "none") return undefined;
  return async (step, loss, seconds) => {
    const text = `step ${step} of ${steps}: loss ${loss.toFixed(4)}`;
    say.error(`${progress === "text" ? text : JSON.stringify({ step, steps, loss, seconds })}\n`);
  };
}

/** Return where the progress of a training is stored; null: nowhere. */
function storeIn({ checkpoint: where, checkpointEvery: every }: Given): Store | null {
  const read = (): Uint8Array<ArrayBuffer> | null => (existsSync(where) ? contentOf(where, "expected the progress of a training") : null);
  return where ? { where, every, read, write: (content) => write(where, content) } : null;
}

function stateIn(path: string): State | null {
  return path ? readState(contentOf(path, "expected a state that train wrote"), path) : null;
}

/** Return the key that signs updates: the one given, or this device's own if it has one. */
function keyFor({ deviceKey: path, unsigned }: Given): DeviceKey | null {
  if (unsigned || (!path && !existsSync(ownKey()))) return null;
  return deviceKey(path || ownKey());
}

const ownKey = (): string => join(configFolder(), "device.pem");

function checkFolder(out: string): void {
  let right = false;
  try {
    right = !(existsSync(out) && statSync(out).isDirectory()) && statSync(dirname(out)).isDirectory();
  } catch (error) {
    if (!reason(error)) throw error;
  }
  if (!right) throw new InputError(`--out: ${out} is a folder, or lies in none; expected the name of a file`);
}
