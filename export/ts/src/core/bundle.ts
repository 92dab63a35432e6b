// Reads bundles. Every file of a bundle is checked against its hash before it is used, and only its graphs are executed, in onnxruntime.

import type { InferenceSession } from "onnxruntime-common";
import { CheckError, type Json, type Table, checkBudget, checkManifest, checkTraining, own, shown } from "./checks.js";
import { GraphError, externalFiles } from "./graph.js";
import { InputError, firstLine } from "./problems.js";
import { readTensors } from "./safetensors.js";
import { decoded, encoded, hex } from "./text.js";
import { type Host, type Values, isFinite } from "./values.js";

const FORMAT_VERSION = 2;
const UNSEALED = "0".repeat(64);

/** The files of a bundle, wherever they are. */
export interface Files {
  /** Return the content of a file; InputError if it is missing, a link, or not of `bytes` bytes (undefined: any number). */
  read(path: string, bytes?: number): Promise<Uint8Array<ArrayBuffer>>;
  /** What messages call a file, or the bundle without a path. */
  where(path?: string): string;
  /** What onnxruntime opens instead of a graph's content if its weights are in other files; undefined: it gets their contents. */
  source?(path: string): string;
}

/** A tier's entry `train`, with the types that are checked. */
export type Training = Table & {
  graphs: string[]; predict: string; parameters: string; optimizer: string; lr: number; momentum: number; batch_size: number; epochs: number;
  trained: Record<string, number[]>; statistics: Record<string, number[]>; frozen: Record<string, number[]>; upload: Record<string, number[]>;
  personal: string[]; objective: { name: string; strength: number }; present: boolean; no_update: string;
};

/** Return the bundle whose manifest `files` have, after checks of its own hash and values; `check` sees the bytes first. */
export async function readBundle(files: Files, host: Host, check: (manifest: Uint8Array<ArrayBuffer>) => Promise<void> = async () => {}): Promise<Bundle> {
  const path = files.where("manifest.json");
  const content = await files.read("manifest.json");
  await check(content);
  let manifest: unknown;
  let text = "";
  try {
    text = decoded(content, true);
    manifest = JSON.parse(text);
  } catch (error) {
    throw new InputError(`${path}: not valid JSON (${firstLine(error)})`);
  }
  const version = typeof manifest === "object" && manifest !== null ? own(manifest as Table, "format_version") : undefined;
  if (version !== FORMAT_VERSION) {
    throw new InputError(`${path}: format_version: got ${shown(version)}, expected ${FORMAT_VERSION}: made by another version of edgefl`);
  }
  const table = refused(path, () => checkManifest(manifest));
  const digest = table.manifest_sha256 as string;
  if (hex(await host.sha256(encoded(text.replace(digest, UNSEALED)))) !== digest) {
    throw new InputError(`${path}: changed: its SHA-256 is not its manifest_sha256; get the bundle again`);
  }
  return new Bundle(files, table, host);
}

export class Bundle {
  constructor(readonly files: Files, readonly manifest: Table, readonly host: Host) {}

  get tiers(): Table[] {
    return this.manifest.tiers as Table[];
  }

  /** Return the manifest's entry of a tier; InputError if there is none. */
  tier(label: string): Table {
    const found = this.tiers.filter((entry) => entry.label === label).at(-1);
    if (!found) throw new InputError(`tier: got ${shown(label)}, the bundle has ${this.tiers.map((entry) => entry.label).join(", ") || "none"}`);
    return found;
  }

  /** Return the entry `train` of a tier; InputError if the bundle is for inference only. */
  training(label: string): Training {
    const entry = this.tier(label);
    const table = own(entry, "train") ?? null;
    const where = `${this.files.where("manifest.json")}: tier ${label}: train`;
    if (table === null) throw new InputError(`${where}: there is none: this bundle was exported for inference only`);
    return refused(where, () => {
      const checked = checkTraining(table);
      checkBudget(own(entry, "budget") ?? {});
      return checked as Training;
    });
  }

  /** Return the content of a file of the bundle; InputError if it is not listed, missing, a link or changed. */
  async content(path: string): Promise<Uint8Array<ArrayBuffer>> {
    const entry = own(this.manifest.files as Table, path) as { bytes: number; sha256: string } | undefined;
    // An empty part would be an absolute path to onnxruntime, which joins a graph's folder and the name of its weights.
    if (!entry || path.split("/").some((part) => ["", ".", ".."].includes(part)) || /[\\:\0]/.test(path)) {
      throw new InputError(`${this.files.where()}: ${shown(path)} is no file of the bundle: expected a path inside that the manifest lists`);
    }
    const content = await this.files.read(path, entry.bytes);
    const changed = `${this.files.where(path)}: changed:`;
    if (content.byteLength !== entry.bytes) throw new InputError(`${changed} ${content.byteLength} bytes, expected ${entry.bytes}; get the bundle again`);
    if (hex(await this.host.sha256(content)) !== entry.sha256) throw new InputError(`${changed} its SHA-256 is not the manifest's; get the bundle again`);
    return content;
  }

  /** Return a session for the graph at `path`; InputError if a file was changed, or onnxruntime does not accept the graph. */
  async session(path: string): Promise<InferenceSession> {
    const content = await this.content(path);
    let outside;
    try {
      outside = externalFiles(content);
    } catch (error) {
      if (!(error instanceof GraphError)) throw error;
      throw new InputError(`${this.files.where(path)}: not an ONNX model (${error.message})`);
    }
    const folder = path.slice(0, path.lastIndexOf("/") + 1);
    const externalData: { path: string; data: Uint8Array }[] = [];
    for (const name of outside) externalData.push({ path: name, data: await this.content(`${folder}${name}`) });
    const { ort, options, runtime } = this.host;
    const source = outside.size ? this.files.source?.(path) : undefined;
    try {
      return await this.host.watched(`${path}: loading it`, () =>
        source ? ort.InferenceSession.create(source, options) : ort.InferenceSession.create(content, outside.size ? { ...options, externalData } : options),
      );
    } catch (error) {
      throw new InputError(`${this.files.where(path)}: ${runtime} does not take it: ${firstLine(error)}`);
    }
  }

  /** Return the first values of a tier's tensors, with the server's control variates under `control:NAME`. */
  async parameters(label: string): Promise<Values> {
    const table = this.training(label);
    const tensors = await this.tensors(table.parameters);
    const where = this.files.where(table.parameters);
    for (const [name, shape] of Object.entries({ ...table.trained, ...table.statistics, ...table.frozen })) {
      const found = tensors.get(name)?.dims;
      if (String(found) !== String(shape)) throw new InputError(`${where}: ${name}: got ${found ? shown([...found]) : "nothing"}, expected shape ${shown(shape)}`);
    }
    for (const [name, value] of tensors) if (!isFinite(value)) throw new InputError(`${where}: ${name} holds NaN or infinity`);
    return tensors;
  }

  /** Return the tensors in a safetensors file of the bundle. */
  async tensors(path: string): Promise<Values> {
    const content = await this.content(path);
    try {
      return readTensors(content).tensors;
    } catch (error) {
      throw new InputError(`${this.files.where(path)}: not a safetensors file (${firstLine(error)})`);
    }
  }
}

/** An input of the graphs. */
export interface Input {
  shape: number[];
  dtype: string;
  preprocessing: Table;
}

/** Return input of the graphs → its shape, dtype and preprocessing: `x`, or `x.NAME` for each of several. */
export function inputsOf(manifest: Table): Record<string, Input> {
  const several = own(manifest, "inputs") as Table | undefined;
  const entries = Object.entries(several ?? {}).map(([name, entry]): [string, Json] => [`x.${name}`, entry]);
  const one = { shape: manifest.input_shape ?? [], dtype: manifest.input_dtype ?? "float32", preprocessing: manifest.preprocessing ?? {} };
  return (entries.length ? Object.fromEntries(entries) : { x: one }) as unknown as Record<string, Input>;
}

/** Return the result of a check; turn a failed one into an InputError that begins with `where`. */
export function refused<T>(where: string, check: () => T): T {
  try {
    return check();
  } catch (error) {
    throw error instanceof CheckError ? new InputError(`${where}: ${error.message}`) : error;
  }
}
