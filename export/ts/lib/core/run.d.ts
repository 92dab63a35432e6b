import type { InferenceSession } from "onnxruntime-common";
import { type Bundle, type Training } from "./bundle.js";
import { type Table } from "./checks.js";
import { type State } from "./state.js";
import { type Value, type Values } from "./values.js";
/** Return input → value: trained tensors are `p.NAME`, statistics `s.NAME`, frozen ones `f.NAME`. */
export declare function byRole(table: Training, tensors: Values): Values;
/** Return a tier's tensors: those of `state` if it is of this bundle, else the bundle's with personal ones of `state`. */
export declare function current(bundle: Bundle, label: string, given: Values, state: State | null): Values;
/** Run a graph on those of the values that it takes; InputError if it takes another type, ClientError if onnxruntime fails. */
export declare function run(bundle: Bundle, session: InferenceSession, values: Values): Promise<Values>;
/** Throw an InputError unless `data` has exactly the inputs of the graphs. */
export declare function checkInputs(manifest: Table, data: Values): void;
/**
 * Return probabilities (n, classes) for samples, by the tier's graph, a variant of it, or the weights of `state`; of a regression its outputs.
 */
export declare function infer(bundle: Bundle, label: string, data: Values, state?: State | null, variant?: string): Promise<Value>;
/** Return the outputs of a graph for samples, in batches; `weights` are what it takes besides. */
export declare function predicted(bundle: Bundle, session: InferenceSession, data: Values, batchSize: number, weights?: Values): Promise<Value>;
/** Throw a ClientError if one of the outputs of the graph at `path` is NaN or infinite. */
export declare function checkFinite(path: string, { data }: Value): void;
/** Return the largest allowed difference of outputs from their reference: 1e-4, as a share of the largest one if that is above 1. */
export declare function allowedError({ data }: Value): number;
/** Return the softmax of each row. */
export declare function probabilities({ dims, data }: Value): Value;
