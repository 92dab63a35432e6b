// NumPy's .npz: a zip of .npy files, stored or deflated, as numpy.savez and savez_compressed write them.

import { decoded } from "./text.js";
import { type Data, sizeOf } from "./values.js";

type Maker = { new (buffer: ArrayBuffer): Data; readonly BYTES_PER_ELEMENT: number };
const KINDS: Record<string, [Maker, string]> = {
  "<f4": [Float32Array, "float32"], "<f8": [Float64Array, "float64"], "<i8": [BigInt64Array, "int64"], "<i4": [Int32Array, "int32"],
  "<i2": [Int16Array, "int16"], "|i1": [Int8Array, "int8"], "|u1": [Uint8Array, "uint8"], "<u2": [Uint16Array, "uint16"],
  "<u4": [Uint32Array, "uint32"], "<u8": [BigUint64Array, "uint64"], "|b1": [Uint8Array, "bool"],
};
/** A file that grows more is no data set, but made to fill the memory. */
const [LARGE_BYTES, MOST_RATIO] = [2 ** 28, 200];

/** An array of a file: `type` is NumPy's name of what it holds. */
export interface NpArray {
  readonly type: string;
  readonly shape: readonly number[];
  readonly data: Data;
}

/** Return deflated bytes as they were; an error if they are more than `mostBytes`. */
export type Inflate = (content: Uint8Array<ArrayBuffer>, mostBytes: number) => Promise<Uint8Array<ArrayBuffer>>;

/** The file is too large when it is unpacked. */
export class GrowthError extends Error {}

/** Return name → array of a file's bytes. */
export async function readNpz(bytes: Uint8Array<ArrayBuffer>, inflate: Inflate): Promise<Map<string, NpArray>> {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let end = bytes.length - 22;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end -= 1;
  if (end < 0) throw new Error("it is no zip file");
  const entries = [];
  let at = view.getUint32(end + 16, true);
  let inflated = 0;
  for (let left = view.getUint16(end + 10, true); left > 0; left--) {
    if (at + 46 > bytes.length || view.getUint32(at, true) !== 0x02014b50) throw new Error("its list of arrays is damaged");
    const [method, nameBytes, local] = [view.getUint16(at + 10, true), view.getUint16(at + 28, true), view.getUint32(at + 42, true)];
    const name = decoded(bytes.subarray(at + 46, at + 46 + nameBytes)).replace(/\.npy$/, "");
    const extra = at + 46 + nameBytes;
    const sizes = zip64(view, extra, extra + view.getUint16(at + 30, true), view.getUint32(at + 24, true), view.getUint32(at + 20, true));
    entries.push({ method, name, local, ...sizes });
    inflated += sizes.whole;
    at = extra + view.getUint16(at + 30, true) + view.getUint16(at + 32, true);
  }
  if (inflated > LARGE_BYTES && inflated > MOST_RATIO * bytes.length) {
    const times = Math.floor(inflated / bytes.length);
    throw new GrowthError(`grows to ${inflated.toLocaleString("en")} bytes, ${times} times its size; save it with numpy.savez, uncompressed`);
  }
  const arrays = new Map<string, NpArray>();
  for (const { method, name, local, packed, whole } of entries) {
    if (local + 30 > bytes.length) throw new Error(`${name} is damaged`);
    const start = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    const content = bytes.subarray(start, start + packed);
    if (method !== 0 && method !== 8) throw new Error(`${name} is packed in a way that is not supported`);
    arrays.set(name, readNpy(method ? await inflate(content, whole) : content, name));
  }
  return arrays;
}

/** Return the sizes of an entry, which are in its extra field if they need more than 32 bits or are written so. */
function zip64(view: DataView, from: number, to: number, whole: number, packed: number): { whole: number; packed: number } {
  for (let at = from; at + 4 <= to; at += 4 + view.getUint16(at + 2, true)) {
    if (view.getUint16(at, true) !== 1) continue;
    let next = at + 4;
    const wide = (size: number): number => (size === 0xffffffff ? Number(view.getBigUint64((next += 8) - 8, true)) : size);
    return { whole: wide(whole), packed: wide(packed) };
  }
  return { whole, packed };
}

/** Return the array in an .npy file's bytes; an Error, which calls it `name`, if it is none. */
export function readNpy(bytes: Uint8Array<ArrayBuffer>, name: string): NpArray {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.length < 12 || bytes[0] !== 0x93) throw new Error(`${name} is no .npy file`);
  const wide = (bytes[6] ?? 0) > 1;
  const start = (wide ? 12 : 10) + (wide ? view.getUint32(8, true) : view.getUint16(8, true));
  const header = decoded(bytes.subarray(wide ? 12 : 10, start));
  const known = KINDS[/'descr': '([^']+)'/.exec(header)?.[1] ?? ""];
  if (!known || /'fortran_order': True/.test(header)) throw new Error(`${name}: expected one of ${Object.keys(KINDS).join(", ")} in C order`);
  const shape = (/'shape': \(([^)]*)\)/.exec(header)?.[1] ?? "").split(",").filter((side) => side.trim()).map(Number);
  const [kind, type] = known;
  const size = sizeOf(shape) * kind.BYTES_PER_ELEMENT;
  if (!(bytes.length >= start + size)) throw new Error(`${name} is cut off`);
  return { type, shape, data: new kind(bytes.slice(start, start + size).buffer) };
}
