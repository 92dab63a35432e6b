// safetensors: eight bytes of header length, a JSON header, raw little-endian data.

const TYPES = {
  F32: [Float32Array, "float32"],
  F64: [Float64Array, "float64"],
  I64: [BigInt64Array, "int64"],
  I32: [Int32Array, "int32"],
  U8: [Uint8Array, "uint8"],
  BOOL: [Uint8Array, "bool"],
};

/** Return name → {type, dims, data} of a file's tensors; `type` is onnxruntime's name of it. */
export function readTensors(bytes, name) {
  const fail = (what) => new Error(`${name}: not a valid safetensors file: ${what}`);
  if (bytes.byteLength < 8) throw fail("shorter than its header");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const length = Number(view.getBigUint64(0, true));
  if (length > bytes.byteLength - 8) throw fail("shorter than its header");
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  const tensors = new Map();
  for (const [key, entry] of Object.entries(header)) {
    if (key === "__metadata__") continue;
    if (!(entry.dtype in TYPES)) throw fail(`${key} is ${entry.dtype}, expected one of ${Object.keys(TYPES).join(", ")}`);
    const [Kind, type] = TYPES[entry.dtype];
    const [start, end] = entry.data_offsets.map((offset) => offset + 8 + length);
    const size = entry.shape.reduce((product, side) => product * side, 1);
    if (end > bytes.byteLength || end - start !== size * Kind.BYTES_PER_ELEMENT) throw fail(`${key} does not lie in it`);
    // A copy: data of a file need not be aligned for its type.
    tensors.set(key, { type, dims: entry.shape, data: new Kind(bytes.slice(start, end).buffer) });
  }
  return tensors;
}

/** Return the bytes of a file with float32 `tensors` (name → {dims, data}) and string → string `metadata`. */
export function writeTensors(tensors, metadata) {
  const header = { __metadata__: metadata };
  let offset = 0;
  const names = [...tensors.keys()].sort();
  for (const name of names) {
    const { dims, data } = tensors.get(name);
    if (!(data instanceof Float32Array)) throw new Error(`${name}: not float32`);
    header[name] = { dtype: "F32", shape: Array.from(dims), data_offsets: [offset, (offset += data.byteLength)] };
  }
  let text = new TextEncoder().encode(JSON.stringify(header));
  const padded = new Uint8Array(Math.ceil(text.length / 8) * 8).fill(0x20); // data then starts at a multiple of eight
  padded.set(text);
  const bytes = new Uint8Array(8 + padded.length + offset);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(padded.length), true);
  bytes.set(padded, 8);
  let at = 8 + padded.length;
  for (const name of names) {
    const { data } = tensors.get(name);
    bytes.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), at);
    at += data.byteLength;
  }
  return bytes;
}
