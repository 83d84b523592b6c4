"""Programs derived from a version's own: an ONNX graph with named layers, its int8 form, the proof.

A derived program computes the same function faster and less exactly. It lies in the version beside
the reference program, and its manifest entry tells how it was made and what it loses.
"""
