"""Export formats beside ONNX: a tier's network as a file of another runtime, one file of this package for each format."""
