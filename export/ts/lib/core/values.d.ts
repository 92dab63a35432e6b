import type { InferenceSession, InferenceSessionFactory, TensorConstructor } from "onnxruntime-common";
export type Data = Float32Array<ArrayBuffer> | Float64Array<ArrayBuffer> | BigInt64Array<ArrayBuffer> | BigUint64Array<ArrayBuffer> | Int32Array<ArrayBuffer> | Uint32Array<ArrayBuffer> | Int16Array<ArrayBuffer> | Uint16Array<ArrayBuffer> | Int8Array<ArrayBuffer> | Uint8Array<ArrayBuffer>;
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
    readonly ort: {
        InferenceSession: InferenceSessionFactory;
        Tensor: TensorConstructor;
    };
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
export declare const sizeOf: (dims: readonly number[]) => number;
export declare const float32: (dims: readonly number[], data: ArrayLike<number>) => Value;
export declare const zeros: (dims: readonly number[]) => Value;
/** Return a value made of float32 values of the same shape, by entry. */
export declare function mapped(values: readonly Value[], make: (...entries: number[]) => number): Value;
export declare function isFinite({ data }: Value): boolean;
/** Return the rows `indices` of a value. */
export declare function rows({ type, dims, data }: Value, indices: readonly number[]): Value;
/** Mirror one sample in place, from left to right: its last dimension is reversed. */
export declare function mirror({ dims, data }: Value, sample: number): void;
