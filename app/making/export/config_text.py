"""Writes the text of a new model's config.toml from `templates/`.

The values in the templates were chosen by measurements on two cores.
"""

from collections.abc import Sequence
from pathlib import Path
from string import Template

TEMPLATES = Path(__file__).parent / "templates"

_ONE_SHAPE = "cache_capacity = 1          # every input has one shape"
# Every pair of batch size and bucket is a shape. In a cache for only some shapes, each shape would
# have its own packed weights, and they would be packed again whenever the shape had been evicted.
_ALL_SHAPES = "cache_capacity = 0          # all shapes are kept and share their packed weights"

_MASKS = "{ mean_difference = 0.015, agreement = 0.95 }"
_LABELS = "{ mean_difference = 0.1, agreement = 1.0 }"

BUCKETS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)

_CHINESE = {
    "angry": "愤怒",
    "happy": "快乐",
    "neutral": "平静",
    "surprise": "惊讶",
    "sad": "悲伤",
    "fear": "恐惧",
}


def template(name: str, **values: object) -> str:
    return Template((TEMPLATES / f"{name}.toml").read_text("utf-8")).substitute(values)


def segment_config(side: int) -> str:
    pairs = "\n" + template("pairs", budget=_MASKS)
    groups = template("groups", budget=_MASKS, cache=_ONE_SHAPE, alone="", pairs=pairs)
    return template("segment", groups="\n" + groups, side=side)


def sentiment_config(*, labels: Sequence[str], pad_id: int, positions: int) -> str:
    buckets = [length for length in BUCKETS if length <= positions]
    warmups = (
        f"[[warmup]]\nshapes = {{ input_ids = [1, {length}], attention_mask = [1, {length}] }}\n"
        for length in buckets
    )
    alone = "\n" + template("alone", cache=_ALL_SHAPES)
    groups = template("groups", budget=_LABELS, cache=_ALL_SHAPES, alone=alone, pairs="")
    return template(
        "sentiment",
        groups="\n" + groups,
        warmups="\n".join(warmups),
        labels=", ".join(f'"{label}"' for label in labels),
        labels_zh=", ".join(f'"{_CHINESE.get(label, label)}"' for label in labels),
        buckets=buckets,
        max_tokens=buckets[-1],
        pad_id=pad_id,
    )
