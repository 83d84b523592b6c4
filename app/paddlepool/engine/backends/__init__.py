"""Predictors in child processes: one interface for all, and small modules for each framework."""

BACKENDS: dict[str, str] = {
    "paddle_inference": "paddlepool.engine.backends.paddle_inference:open_predictor",
    "paddle_jit": "paddlepool.engine.backends.paddle_layer:open_jit",
    "paddle_dygraph": "paddlepool.engine.backends.paddle_layer:open_dygraph",
    "onnxruntime": "paddlepool.engine.backends.onnx:open_onnxruntime",
    "openvino": "paddlepool.engine.backends.onnx:open_openvino",
}
"""Maps a backend's name in config.toml to the function that opens a model in the child process."""
