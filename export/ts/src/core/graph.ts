// Finds the files that an ONNX graph would read, before onnxruntime sees the graph. onnxruntime reads weights from any file that a tensor
// names as its external data. The protobuf is therefore walked whole, in the fields of onnx.proto that can lead to a tensor.

import { decoded } from "./text.js";

type Kind = "model" | "training" | "function" | "graph" | "node" | "attribute" | "sparse" | "tensor";

// Kind of message → field number → kind of the message in that field.
const FIELDS: Record<Kind, Record<number, Kind>> = {
  model: { 7: "graph", 20: "training", 25: "function" },
  training: { 1: "graph", 2: "graph" },
  function: { 7: "node", 11: "attribute" },
  graph: { 1: "node", 5: "tensor", 15: "sparse" },
  node: { 5: "attribute" },
  attribute: { 5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse" },
  sparse: { 1: "tensor", 2: "tensor" },
  tensor: {},
};
const [EXTERNAL_DATA, KEY, VALUE] = [13, 1, 2];
const [VARINT, EIGHT_BYTES, DELIMITED, FOUR_BYTES] = [0, 1, 2, 5];
const DEEPEST = 100; // as in protobuf itself
// onnxruntime reads a file with the first at byte 4 as its own format. It takes a location with the second as an address in memory.
const [ORT_FORMAT, IN_MEMORY] = ["ORTM", "_ORT_MEM_ADDR_"];

/** The content is no ONNX model, or nested too deep, or names a file in a way that cannot be checked. */
export class GraphError extends Error {}

/** Return the locations that the tensors of an ONNX model name, in its graphs, their inner graphs and its functions. */
export function externalFiles(content: Uint8Array): Set<string> {
  if (decoded(content.subarray(4, 8)) === ORT_FORMAT) throw new GraphError("onnxruntime's own format");
  const found = new Set<string>();
  const waiting: [Kind, Uint8Array, number][] = [["model", content, 0]];
  for (let next = waiting.pop(); next; next = waiting.pop()) {
    const [kind, message, depth] = next;
    if (depth > DEEPEST) throw new GraphError(`graphs within each other, more than ${DEEPEST} deep`);
    for (const [number, inner] of messages(message)) {
      const of = FIELDS[kind][number];
      if (kind === "tensor" && number === EXTERNAL_DATA) {
        const entry = new Map(messages(inner)); // of a field that is there twice, protobuf takes the last
        if (decoded(entry.get(KEY) ?? new Uint8Array()) === "location") found.add(pathOf(entry.get(VALUE) ?? new Uint8Array()));
      } else if (of) waiting.push([of, inner, depth + 1]);
    }
  }
  return found;
}

/** Return a location as text. The bytes must be this text in UTF-8: onnxruntime opens the file of these bytes. */
function pathOf(location: Uint8Array): string {
  let text;
  try {
    text = decoded(location, true);
  } catch {
    throw new GraphError("the name of a file that is not UTF-8");
  }
  if (text.includes(IN_MEMORY)) throw new GraphError("weights at an address in memory");
  return text;
}

/** Yield number and content of each field of a message that has a length: inner messages, texts and bytes. */
function* messages(message: Uint8Array): Generator<[number, Uint8Array]> {
  let at = 0;
  let value;
  while (at < message.length) {
    [value, at] = varint(message, at);
    if (value >= 2 ** 32) throw new GraphError("a tag of more than 32 bits"); // protobuf drops the upper bits: another field there
    const [number, wire] = [Math.floor(value / 8), value % 8];
    let size = wire === EIGHT_BYTES ? 8 : wire === FOUR_BYTES ? 4 : 0;
    if (wire === VARINT || wire === DELIMITED) {
      [value, at] = varint(message, at);
      if (wire === DELIMITED) size = value;
    } else if (!size) throw new GraphError(`field ${number} has wire type ${wire}, which ONNX does not use`);
    if (size > message.length - at) throw new GraphError("cut");
    if (wire === DELIMITED) yield [number, message.subarray(at, at + size)];
    at += size;
  }
}

/** Return the number that begins at `at`, in groups of seven bits, and where it ends; beyond 2⁵³ it is rounded. */
function varint(message: Uint8Array, at: number): [number, number] {
  let value = 0;
  for (let shift = 0; shift < 70; shift += 7) {
    const byte = message[at];
    if (byte === undefined) throw new GraphError("cut");
    value += (byte & 127) * 2 ** shift;
    at += 1;
    if (byte < 128) return [value, at];
  }
  throw new GraphError("a number of more than 64 bits");
}
