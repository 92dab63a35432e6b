// Values of tensors, and what the core asks of the program around it: onnxruntime, a hash, a clock. Here is no page and no Node.

import type { InferenceSession, InferenceSessionFactory, TensorConstructor } from "onnxruntime-common";

export type Data =
  | Float32Array<ArrayBuffer> | Float64Array<ArrayBuffer> | BigInt64Array<ArrayBuffer> | BigUint64Array<ArrayBuffer> | Int32Array<ArrayBuffer>
  | Uint32Array<ArrayBuffer> | Int16Array<ArrayBuffer> | Uint16Array<ArrayBuffer> | Int8Array<ArrayBuffer> | Uint8Array<ArrayBuffer>;

/** A tensor: `type` is onnxruntime's name of what it holds. */
export interface Value {
  readonly type: string;
  readonly dims: readonly number[];
  readonly data: Data;
}
export type Values = Map<string, Value>;

/** What the program around the core provides. */
export interface Host {
  /** The module onnxruntime-node, onnxruntime-web or onnxruntime-react-native. */
  readonly ort: { InferenceSession: InferenceSessionFactory; Tensor: TensorConstructor };
  /** Name and version of that module, for messages. */
  readonly runtime: string;
  readonly options: InferenceSession.SessionOptions;
  sha256(content: Uint8Array<ArrayBuffer>): Promise<Uint8Array>;
  /** Whether `signature` is Ed25519's of `content` by the owner of the public key of 32 bytes. */
  verify(key: Uint8Array<ArrayBuffer>, signature: Uint8Array<ArrayBuffer>, content: Uint8Array<ArrayBuffer>): Promise<boolean>;
  /** Seconds of a clock that never goes back. */
  now(): number;
  /** Bytes that nobody can guess. */
  random(count: number): Uint8Array;
  /** Run `work`, which `what` names, with whatever limit of time there is. */
  watched<T>(what: string, work: () => Promise<T>): Promise<T>;
}

export const sizeOf = (dims: readonly number[]): number => dims.reduce((product, side) => product * side, 1);

export const float32 = (dims: readonly number[], data: ArrayLike<number>): Value => ({ type: "float32", dims, data: Float32Array.from(data) });

export const zeros = (dims: readonly number[]): Value => ({ type: "float32", dims, data: new Float32Array(sizeOf(dims)) });

/** Return a value made of float32 values of the same shape, by entry. */
export function mapped(values: readonly Value[], make: (...entries: number[]) => number): Value {
  const [first] = values;
  if (!first) throw new Error("no values");
  return { type: "float32", dims: first.dims, data: Float32Array.from({ length: first.data.length }, (_, i) => make(...values.map(({ data }) => Number(data[i])))) };
}

export function isFinite({ data }: Value): boolean {
  return !(data instanceof Float32Array || data instanceof Float64Array) || (data as Float32Array).every(Number.isFinite);
}

/** Return the rows `indices` of a value. */
export function rows({ type, dims, data }: Value, indices: readonly number[]): Value {
  const size = sizeOf(dims.slice(1));
  const part = new (data.constructor as new (length: number) => Data)(indices.length * size);
  indices.forEach((index, i) => part.set(data.subarray(index * size, (index + 1) * size) as never, i * size));
  return { type, dims: [indices.length, ...dims.slice(1)], data: part };
}

/** Mirror one sample in place, from left to right: its last dimension is reversed. */
export function mirror({ dims, data }: Value, sample: number): void {
  const [size, width] = [sizeOf(dims.slice(1)), dims.at(-1) ?? 1];
  for (let row = sample * size; row < (sample + 1) * size; row += width) data.subarray(row, row + width).reverse();
}
