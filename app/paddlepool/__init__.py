"""Paddlepool: a model server around Paddle Inference."""

__version__ = "1.0.0"
