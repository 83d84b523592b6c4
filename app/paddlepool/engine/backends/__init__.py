"""Predictors in child processes: one interface for all, and small modules for each framework."""

BACKENDS: dict[str, str] = {
    "paddle_inference": "paddlepool.engine.backends.paddle_inference:open_predictor",
    "paddle_jit": "paddlepool.engine.backends.paddle_layer:open_jit",
    "paddle_dygraph": "paddlepool.engine.backends.paddle_layer:open_dygraph",
    "onnxruntime": "paddlepool.engine.backends.onnx:open_onnxruntime",
    "openvino": "paddlepool.engine.backends.onnx:open_openvino",
}
"""Name in config.toml, and the function with which the child process opens a model."""
