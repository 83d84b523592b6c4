"""Types that all packages share: errors, tensors, ports and status.

This package imports no other package of Paddlepool.
"""
