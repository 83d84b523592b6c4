"""Types and small functions that every layer may use, such as errors, tensors, ports and status.

This package imports no other package of Paddlepool.
"""
