// safetensors: eight bytes of header length, a JSON header, raw little-endian data.

import { isTable, type Table } from "./checks.js";
import { byBytes, decoded, encoded } from "./text.js";
import { type Data, type Value, type Values, sizeOf } from "./values.js";

type Maker = { new (buffer: ArrayBuffer): Data; readonly BYTES_PER_ELEMENT: number };
const TYPES: Record<string, [Maker, string]> = {
  F32: [Float32Array, "float32"],
  F64: [Float64Array, "float64"],
  I64: [BigInt64Array, "int64"],
  I32: [Int32Array, "int32"],
  U8: [Uint8Array, "uint8"],
  BOOL: [Uint8Array, "bool"],
};
const NAMES: Record<string, string> = Object.fromEntries(Object.entries(TYPES).map(([name, [, type]]) => [type, name]));

/** Return the tensors and the metadata of a file's bytes; throws an Error where they are not what the format says. */
export function readTensors(bytes: Uint8Array<ArrayBuffer>): { tensors: Values; metadata: Record<string, string> } {
  if (bytes.byteLength < 8) throw new Error("shorter than its header");
  const length = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  if (length > bytes.byteLength - 8) throw new Error("shorter than its header");
  const header: unknown = JSON.parse(decoded(bytes.subarray(8, 8 + length), true));
  if (!isTable(header)) throw new Error("its header is no table");
  const { __metadata__: metadata = {}, ...entries } = header;
  if (!isTable(metadata) || !Object.values(metadata).every((value) => typeof value === "string")) throw new Error("its metadata are not texts");
  const tensors: Values = new Map();
  const spans: [number, number][] = [];
  for (const [name, entry] of Object.entries(entries)) {
    const { dtype, shape, data_offsets: offsets } = isTable(entry) ? entry : ({} as Table);
    const known = typeof dtype === "string" && Object.hasOwn(TYPES, dtype) ? TYPES[dtype] : undefined;
    if (!known) throw new Error(`${name} is ${String(dtype)}, expected one of ${Object.keys(TYPES).join(", ")}`);
    if (!isSizes(shape) || !isSizes(offsets) || offsets.length !== 2) throw new Error(`${name} has no shape or place`);
    const [kind, type] = known;
    const [start, end] = [offsets[0] ?? 0, offsets[1] ?? 0];
    if (8 + length + end > bytes.byteLength || end - start !== sizeOf(shape) * kind.BYTES_PER_ELEMENT) throw new Error(`${name} does not lie in it`);
    // A copy: data of a file need not be aligned for its type.
    tensors.set(name, { type, dims: shape, data: new kind(bytes.slice(8 + length + start, 8 + length + end).buffer) });
    spans.push([start, end]);
  }
  let at = 0;
  for (const [start, end] of spans.sort(([a, b], [c, d]) => a - c || b - d)) {
    if (start !== at) throw new Error("its tensors do not follow each other");
    at = end;
  }
  if (8 + length + at !== bytes.byteLength) throw new Error("it is longer or shorter than its tensors");
  return { tensors, metadata: metadata as Record<string, string> };
}

/** Return the bytes of a file with `tensors` and `metadata`. */
export function writeTensors(tensors: ReadonlyMap<string, Value>, metadata: Record<string, string>): Uint8Array<ArrayBuffer> {
  const header: [string, unknown][] = [["__metadata__", metadata]];
  let offset = 0;
  const width = (name: string): number => tensors.get(name)?.data.BYTES_PER_ELEMENT ?? 0;
  const names = byBytes(tensors.keys()).sort((a, b) => width(b) - width(a)); // the widest first: all are aligned
  const parts: Uint8Array[] = [];
  for (const name of names) {
    const value = tensors.get(name);
    if (!value) continue;
    const { type, dims, data } = value;
    header.push([name, { dtype: NAMES[type], shape: Array.from(dims), data_offsets: [offset, (offset += data.byteLength)] }]);
    parts.push(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  }
  const text = encoded(JSON.stringify(Object.fromEntries(header)));
  const padded = new Uint8Array(Math.ceil(text.length / 8) * 8).fill(0x20);
  padded.set(text);
  const bytes = new Uint8Array(8 + padded.length + offset);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(padded.length), true);
  bytes.set(padded, 8);
  let at = 8 + padded.length;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

function isSizes(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((size) => Number.isSafeInteger(size) && size >= 0);
}
