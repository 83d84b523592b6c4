"""Paddlepool: a model server around Paddle Inference."""

__version__ = "0.1.0"
