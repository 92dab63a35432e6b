"""A bundle in this computer's own browser: the page, onnxruntime-web, and the server that hands them out."""
