"""PaddleX's basic serving of image classification, with one fault of PaddleX 3.7.2 repaired.

`Topk` returns the numbers of the classes as one array, of which each picture gets a part with two
axes. The reply needs one axis, so that PaddleX 3.7.2 answers each request with 500. A list of
arrays is divided correctly. Arguments are those of the command `paddlex`.
"""

from typing import Any

from paddlex.__main__ import console_entry
from paddlex.inference.models.image_classification.processors import Topk

original = Topk.__call__


def repaired(self: Any, *arguments: Any, **options: Any) -> Any:
    indexes, scores, labels = original(self, *arguments, **options)
    return list(indexes), scores, labels


Topk.__call__ = repaired
console_entry()
