/** The content is no protobuf message, or nested too deep. */
export declare class GraphError extends Error {
}
/** Return the locations that the tensors of an ONNX model name, in its graphs, their inner graphs and its functions. */
export declare function externalFiles(content: Uint8Array): Set<string>;
