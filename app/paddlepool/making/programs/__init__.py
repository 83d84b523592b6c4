"""Derives and checks the int8 program of a version, by way of an ONNX graph with named layers."""
