// The local training set, and the files that samples come from. Nothing of it leaves the page.

import { readNpz } from "./core/npz.js";
import { inflate } from "./host.js";
import { normalised, planes } from "./preprocess.js";

export class Samples {
  constructor(manifest) {
    this.manifest = manifest;
    this.x = [];
    this.y = [];
  }

  get length() {
    return this.y.length;
  }

  add(x, label) {
    this.x.push(x);
    this.y.push(label);
  }

  removeLast() {
    this.x.pop();
    return this.y.pop();
  }

  clear() {
    this.x = [];
    this.y = [];
  }

  /** How many samples every class has. */
  counts() {
    const counts = new Array(this.manifest.classes).fill(0);
    for (const label of this.y) counts[label] += 1;
    return counts;
  }

  /** All samples in one flat array. */
  flat() {
    const size = this.x[0]?.length ?? 0;
    const Kind = this.x[0]?.constructor ?? Float32Array;
    const all = new Kind(size * this.length);
    this.x.forEach((sample, i) => all.set(sample, i * size));
    return all;
  }
}

/** Return the pixels of an image file: {width, height, data}, cut to the network's proportions around its middle. */
export async function readImage(file, shape) {
  let picture;
  try {
    picture = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name}: cannot be read as an image; PNG, JPEG, WebP and GIF can`);
  }
  const [, height, width] = shape;
  const scale = Math.min(picture.width / width, picture.height / height);
  const [across, down] = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
  const canvas = new OffscreenCanvas(across, down);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(picture, (across - picture.width) / 2, (down - picture.height) / 2);
  picture.close();
  return context.getImageData(0, 0, across, down);
}

/**
 * Return [{x, label}] of a file of samples: .npz or JSON, with `x` and `y`: inputs as the network takes them (ids of characters for
 * text), or `pixels` instead of `x`: raw ones, normalised as the bundle says. So are x of uint8 or uint16 in an .npz, and all floats if
 * the manifest says `raw`. A class is a number or, in JSON, a name.
 */
export async function readSamples(file, manifest, rule) {
  const fail = (what) => new Error(`${file.name}: ${what}`);
  const [content, y] = await (file.name.endsWith(".npz") ? fromNpz(file) : fromJson(file)).catch((error) => {
    throw fail(error.message);
  });
  const { values, raw, unit = 1 } = content;
  const size = manifest.input_shape.reduce((product, side) => product * side, 1);
  if (values.length !== y.length) throw fail(`${values.length} samples but ${y.length} classes, expected as many`);
  if (!values.length) throw fail("no samples");
  const ids = manifest.input_dtype === "int64";
  const { alphabet, words, raw: floats } = manifest.preprocessing;
  const vocabulary = alphabet?.length ?? (words ? words.length + 1 : Infinity);
  const sound = ids ? (id) => Number.isInteger(id) && id >= 0 && id < vocabulary : Number.isFinite;
  return values.map((value, i) => {
    const plain = Array.from(value, (number) => (typeof number === "bigint" ? Number(number) : number));
    if (plain.length !== size) throw fail(`sample ${i}: ${plain.length} values, expected ${size}: ${manifest.input_shape.join(" × ")}`);
    if (!plain.every(sound)) throw fail(`sample ${i}: expected ${ids ? "ids of characters" : "finite numbers"} only`);
    const label = typeof y[i] === "string" ? manifest.class_names.indexOf(y[i]) : Number(y[i]);
    if (!Number.isInteger(label) || label < 0 || label >= manifest.classes) throw fail(`sample ${i}: there is no class ${y[i]}`);
    if (ids) return { x: BigInt64Array.from(plain, BigInt), label };
    return { x: raw || floats ? fromPixels(plain, manifest.input_shape, rule, unit) : Float32Array.from(plain), label };
  });
}

async function fromJson(file) {
  let content;
  try {
    content = JSON.parse(await file.text());
  } catch (error) {
    throw new Error(`not valid JSON (${error.message})`);
  }
  const values = content?.x ?? content?.pixels;
  if (!Array.isArray(values) || !Array.isArray(content.y)) throw new Error('expected {"x": [...], "y": [...]} or {"pixels": [...], "y": [...]}');
  return [{ values: values.map((value) => [value].flat(Infinity)), raw: !content.x }, content.y];
}

async function fromNpz(file) {
  const arrays = await readNpz(new Uint8Array(await file.arrayBuffer()), inflate);
  const [x, y] = [arrays.get("x") ?? arrays.get("pixels"), arrays.get("y")];
  if (!x?.shape.length || y?.shape.length !== 1) throw new Error("expected the arrays x (or pixels) and y, a class per sample");
  const size = x.data.length / Math.max(1, x.shape[0]);
  const values = Array.from({ length: x.shape[0] }, (_, i) => x.data.subarray(i * size, (i + 1) * size));
  // Whole numbers of 8 and of 16 bits are raw pixels, as in every client; 16 bits are divided by 257.
  return [{ values, raw: !arrays.has("x") || ["uint8", "uint16"].includes(x.type), unit: x.type === "uint16" ? 255 / 65535 : 1 }, Array.from(y.data)];
}

function fromPixels(pixels, [channels], rule, unit) {
  const [size, scale] = [pixels.length / channels, (rule.scale ?? 1) * unit];
  const lights = Array.from({ length: channels }, (_, c) => pixels.slice(c * size, (c + 1) * size).map((pixel) => pixel * scale));
  return normalised(lights, rule);
}

/** Return one sample of an image file. */
export async function imageSample(file, manifest, rule, inverted) {
  return normalised(planes(await readImage(file, manifest.input_shape), manifest.input_shape, inverted), rule);
}
