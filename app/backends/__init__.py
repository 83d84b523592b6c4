"""Predictors: any framework in a child process behind one port, and one small module for each."""

from __future__ import annotations

BACKENDS: dict[str, str] = {
    "paddle_inference": "app.backends.paddle_inference:open_predictor",
    "paddle_jit": "app.backends.paddle_layer:open_jit",
    "paddle_dygraph": "app.backends.paddle_layer:open_dygraph",
    "onnxruntime": "app.backends.onnxruntime:open_predictor",
    "openvino": "app.backends.openvino:open_predictor",
}
"""The name in config.toml, and what the child process imports and calls with its opening."""
