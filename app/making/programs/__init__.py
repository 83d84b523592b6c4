"""Derives programs from a version's own: an ONNX graph of named layers, its int8 form, a check."""
