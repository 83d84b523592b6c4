"""Predictors: any framework in a child process behind one port, and one small module for each."""

from __future__ import annotations

BACKENDS: dict[str, str] = {
    "paddle_inference": "app.engine.backends.paddle_inference:open_predictor",
    "paddle_jit": "app.engine.backends.paddle_layer:open_jit",
    "paddle_dygraph": "app.engine.backends.paddle_layer:open_dygraph",
    "onnxruntime": "app.engine.backends.onnxruntime:open_predictor",
    "openvino": "app.engine.backends.openvino:open_predictor",
}
"""The name in config.toml, and what the child process imports and calls with its opening."""
