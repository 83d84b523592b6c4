"""Derives programs from a version's own: an ONNX graph with named layers, its int8 form, a check.

A derived program computes the same function faster and less exactly. It is stored in the version
beside the reference program; its manifest entry records how it was made and what accuracy it loses.
"""
