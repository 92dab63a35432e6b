"""Runs a bundle in this computer's browser: a local web server for the page, onnxruntime-web and the bundle's files."""
