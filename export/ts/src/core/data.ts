// Checks samples and labels, and prepares raw pixels as the manifest describes.

import { type Input, inputsOf } from "./bundle.js";
import { type Json, type Table, own, tuple } from "./checks.js";
import { GrowthError, type Inflate, type NpArray, readNpz } from "./npz.js";
import { InputError, firstLine } from "./problems.js";
import { type Value, type Values, sizeOf } from "./values.js";

/** Types of raw pixels. Those of 16 bits are divided by 257, so that a pixel is always in units of 8 bits. */
const PIXELS = ["uint8", "uint16"];

/**
 * Return the samples in the content of an .npz file, which messages call `path`: `x` and `y`, or the arrays of several inputs and `y`.
 * InputError if they are wrong, or if labels are missing although `labels` asks for them.
 */
export async function readSamples(path: string, content: Uint8Array<ArrayBuffer>, manifest: Table, labels: boolean, inflate: Inflate): Promise<Values> {
  let arrays;
  try {
    arrays = await readNpz(content, inflate);
  } catch (error) {
    if (error instanceof GrowthError) throw new InputError(`${path}: ${error.message}`);
    throw new InputError(`${path}: not an .npz file of plain arrays (${firstLine(error)})`);
  }
  return samplesOf(path, arrays, manifest, labels);
}

/** Return the samples among arrays by name, checked and prepared, by the inputs of the graphs. */
export function samplesOf(path: string, arrays: Map<string, NpArray>, manifest: Table, labels: boolean): Values {
  const inputs = Object.entries(inputsOf(manifest)).map(([key, entry]) => ({ key, entry, name: key.replace(/^x\./, "") }));
  const missing = inputs.find(({ name }) => !arrays.has(name));
  if (missing) {
    const expected = `${inputs.map(({ name }) => name).join(", ")} and y`;
    throw new InputError(`${path}: ${missing.name}: missing, expected arrays ${expected}; it has ${[...arrays.keys()].join(", ") || "none"}`);
  }
  const found: Values = new Map();
  let first: { name: string; count: number } | null = null;
  for (const { key, entry, name } of inputs) {
    const value = sample(path, name, arrays.get(name) as NpArray, entry);
    const count = value.dims[0] ?? 0;
    first ??= { name, count };
    if (count !== first.count) throw new InputError(`${path}: ${name}: ${count} samples, expected ${first.count}, as many as of ${first.name}`);
    found.set(key, value);
  }
  const y = arrays.get("y");
  if (y) found.set("y", target(path, manifest, y, first?.count ?? 0));
  else if (labels) throw new InputError(`${path}: y: no labels, expected one per sample: training needs them`);
  return found;
}

function sample(path: string, name: string, array: NpArray, { shape, dtype, preprocessing: how }: Input): Value {
  const { type, shape: dims, data } = array;
  if (!dims.length || String(dims.slice(1)) !== String(shape)) {
    throw new InputError(`${path}: ${name}: got shape ${tuple(dims)}, expected (samples, ${shape.join(", ")})`);
  }
  if (!dims[0]) throw new InputError(`${path}: ${name}: no sample, expected at least one`);
  const raw = PIXELS.includes(type) || (Object.hasOwn(how, "raw") && type.startsWith("float"));
  if (dtype === "float32" && raw) return prepared(path, array, how);
  if (dtype === "int64" && /^u?int|^bool/.test(type)) return ids(path, name, array, how);
  if (type !== dtype) {
    const pixels = dtype === "int64" ? "" : ", or uint8 where they are raw pixels";
    throw new InputError(`${path}: ${name}: got ${type}, expected ${dtype}, what the network takes${pixels}`);
  }
  if (!(data as Float32Array).every(Number.isFinite)) throw new InputError(`${path}: ${name} holds NaN or infinity, expected finite values`);
  return { type, dims, data };
}

function ids(path: string, name: string, { shape: dims, data }: NpArray, how: Table): Value {
  const [alphabet, words] = [own(how, "alphabet") as string | undefined, own(how, "words") as Json[] | undefined];
  const count = alphabet ? [...alphabet].length : words?.length ? words.length + 1 : null;
  const [least, most] = range(data as Iterable<number | bigint>);
  if (least < 0 || (count !== null && most >= count)) {
    throw new InputError(`${path}: ${name}: token ids ${least} to ${most}, expected 0 to ${count === null ? "any" : count - 1}`);
  }
  return { type: "int64", dims, data: BigInt64Array.from(data as Iterable<number>, BigInt) };
}

/** Return (pixel · scale − mean) / std; mean and std are one for all channels or one for each. */
function prepared(path: string, { type, shape: dims, data }: NpArray, how: Table): Value {
  if (!["scale", "mean", "std"].every((key) => Object.hasOwn(how, key))) {
    throw new InputError(`${path}: x: raw pixels (uint8), but the manifest has no scale, mean and std: expected prepared float32`);
  }
  const [means, stds] = [[how.mean].flat() as number[], [how.std].flat() as number[]];
  const scale = Number(how.scale) * (type === "uint16" ? 255 / 65535 : 1);
  const inner = sizeOf(dims.slice(2));
  const channels = dims[1] ?? 1;
  for (const [key, values] of [["mean", means], ["std", stds]] as const) {
    if (values.length !== 1 && values.length !== channels) {
      throw new InputError(`${path}: x: ${values.length} values of ${key} in the manifest, expected one, or one for each channel`);
    }
  }
  const made = Float32Array.from(data as Iterable<number>, (pixel, i) => {
    const channel = Math.floor(i / inner) % channels;
    return (Number(pixel) * scale - (means[means.length > 1 ? channel : 0] ?? 0)) / (stds[stds.length > 1 ? channel : 0] ?? 1);
  });
  if (!made.every(Number.isFinite)) throw new InputError(`${path}: x holds NaN or infinity, expected finite values`);
  return { type: "float32", dims, data: made };
}

/** Return labels as int64 (count,), or float32 targets (count, …) of a regression. */
function target(path: string, manifest: Table, { type, shape, data }: NpArray, count: number): Value {
  const dims = own(manifest, "target_shape") as number[] | undefined;
  if (dims) {
    const targets = Float32Array.from(data as Iterable<number | bigint>, Number);
    if (String(shape) !== String([count, ...dims]) || !targets.every(Number.isFinite)) {
      throw new InputError(`${path}: y: got ${type} of shape ${tuple(shape)}, expected finite numbers of shape ${tuple([count, ...dims])}`);
    }
    return { type: "float32", dims: shape, data: targets };
  }
  const classes = Number(manifest.classes);
  if (String(shape) !== String([count]) || !/^u?int/.test(type)) {
    throw new InputError(`${path}: y: got ${type} of shape ${tuple(shape)}, expected integers of shape ${tuple([count])}`);
  }
  const [least, most] = range(data as Iterable<number | bigint>);
  if (least < 0 || most >= classes) throw new InputError(`${path}: y: labels ${least} to ${most}, expected 0 to ${classes - 1}`);
  return { type: "int64", dims: shape, data: BigInt64Array.from(data as Iterable<number>, BigInt) };
}

function range(data: Iterable<number | bigint>): [number, number] {
  let [least, most] = [Infinity, -Infinity];
  for (const value of data) [least, most] = [Math.min(least, Number(value)), Math.max(most, Number(value))];
  return [least, most];
}
