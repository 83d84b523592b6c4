"""Paddle imported with its own warnings ignored, which would otherwise fail the tests.

Imported by the `conftest.py` of every folder whose tests use Paddle in this process.
"""

import os
import warnings

os.environ.setdefault("GLOG_minloglevel", "2")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import paddle

__all__ = ["paddle"]
