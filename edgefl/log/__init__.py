"""Loggers: TensorBoard, MLflow and Weights & Biases show the figures of a run while it trains."""
