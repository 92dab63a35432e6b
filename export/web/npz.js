// NumPy's .npz: a zip of .npy files, stored or deflated, as numpy.savez and savez_compressed write them.

const KINDS = { "<f4": Float32Array, "<f8": Float64Array, "<i8": BigInt64Array, "<i4": Int32Array, "|u1": Uint8Array, "|i1": Int8Array };
const MOST_BYTES = 2 ** 30;

/** Return name → {shape, data} of the arrays in a file's bytes. */
export async function readNpz(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let end = bytes.length - 22;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end -= 1;
  if (end < 0) throw new Error("not an .npz file");
  const arrays = new Map();
  let at = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left > 0; left--) {
    if (view.getUint32(at, true) !== 0x02014b50) throw new Error("a damaged .npz file");
    const [method, packed, nameBytes] = [view.getUint16(at + 10, true), view.getUint32(at + 20, true), view.getUint16(at + 28, true)];
    const local = view.getUint32(at + 42, true);
    const name = new TextDecoder().decode(bytes.subarray(at + 46, at + 46 + nameBytes)).replace(/\.npy$/, "");
    at += 46 + nameBytes + view.getUint16(at + 30, true) + view.getUint16(at + 32, true);
    const start = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    const content = bytes.subarray(start, start + packed);
    if (method !== 0 && method !== 8) throw new Error(`${name}: packed in a way that is not supported`);
    arrays.set(name, readNpy(method ? await inflated(content) : content, name));
  }
  return arrays;
}

async function inflated(content) {
  const reader = new Blob([content]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  const parts = [];
  let size = 0;
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    parts.push(part.value);
    size += part.value.length;
    if (size > MOST_BYTES) throw new Error("more than 1 GiB when unpacked");
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

function readNpy(bytes, name) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.length < 12 || bytes[0] !== 0x93) throw new Error(`${name}: not a .npy file`);
  const wide = bytes[6] > 1;
  const start = (wide ? 12 : 10) + (wide ? view.getUint32(8, true) : view.getUint16(8, true));
  const header = new TextDecoder().decode(bytes.subarray(wide ? 12 : 10, start));
  const Kind = KINDS[/'descr': '([^']+)'/.exec(header)?.[1]];
  if (!Kind || /'fortran_order': True/.test(header)) throw new Error(`${name}: expected one of ${Object.keys(KINDS).join(", ")} in C order`);
  const shape = (/'shape': \(([^)]*)\)/.exec(header)?.[1] ?? "").split(",").filter((side) => side.trim()).map(Number);
  const size = shape.reduce((product, side) => product * side, 1);
  if (bytes.length < start + size * Kind.BYTES_PER_ELEMENT) throw new Error(`${name}: cut off`);
  return { shape, data: new Kind(bytes.slice(start, start + size * Kind.BYTES_PER_ELEMENT).buffer) };
}
