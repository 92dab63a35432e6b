/** The content is no ONNX model, or nested too deep, or names a file in a way that cannot be checked. */
export declare class GraphError extends Error {
}
/** Return the locations that the tensors of an ONNX model name, in its graphs, their inner graphs and its functions. */
export declare function externalFiles(content: Uint8Array): Set<string>;
