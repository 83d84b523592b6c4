"""Folders in PaddleX's form, with tiny networks; a program of its own, for it imports Paddle:

    python -m tests.making.export.paddlex_models DIRECTORY

Each folder is as a hub gives it: with documents, a hidden cache, and a copy of inference.yml as
JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

import paddle
import yaml
from paddle import nn
from paddle.static import InputSpec

NORMALISED = [
    {"NormalizeImage": {"scale": "1./255.", "order": "hwc"}},
    {"ToCHWImage": None},
]


class Map(nn.Layer):
    """A value for each pixel: how dark it is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2D(3, 1, 3, padding=1)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return nn.functional.sigmoid(self.conv(x))


class Lines(nn.Layer):
    """Scores of six classes for each eighth column."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2D(3, 6, (48, 8), stride=(48, 8))

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return nn.functional.softmax(self.conv(x).squeeze(2).transpose([0, 2, 1]), -1)


class Labels(nn.Layer):
    """Scores of four classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2D(3, 4, 16, stride=16)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return nn.functional.softmax(self.conv(x).mean([2, 3]), -1)


class Classes(nn.Layer):
    """A class for each pixel, as PaddleSeg exports it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2D(3, 3, 3, padding=1)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.conv(x).argmax(1).astype("int32")


README = "---\nlicense: apache-2.0\n---\n# A tiny model\n"
FILES: dict[str, tuple[type[nn.Layer], tuple[int, ...], dict[str, Any]]] = {
    "Tiny_det": (
        Map,
        (-1, 3, -1, -1),
        {
            "PreProcess": {
                "transform_ops": [
                    {"DecodeImage": {"img_mode": "BGR", "channel_first": False}},
                    {"DetResizeForTest": {"limit_side_len": 96, "limit_type": "max"}},
                    *NORMALISED,
                ]
            },
            "PostProcess": {"name": "DBPostProcess", "thresh": 0.3},
        },
    ),
    "Tiny_rec": (
        Lines,
        (-1, 3, 48, -1),
        {
            "PreProcess": {"transform_ops": [{"RecResizeImg": {"image_shape": [3, 48, 64]}}]},
            "PostProcess": {"name": "CTCLabelDecode", "character_dict": ["a", "b", "c", "d"]},
        },
    ),
    "Tiny_x1.0_cls": (
        Labels,
        (-1, 3, 32, 32),
        {
            "PreProcess": {"transform_ops": [{"ResizeImage": {"size": [32, 32]}}, *NORMALISED]},
            "PostProcess": {"Topk": {"topk": 1, "label_list": ["0", "90", "180", "270"]}},
        },
    ),
    "Tiny_seg": (
        Classes,
        (-1, 3, -1, -1),
        {
            "Deploy": {
                "transforms": [
                    {"type": "Resize", "target_size": [64, 32]},
                    {"type": "Normalize"},
                ]
            }
        },
    ),
}


def main(root: Path) -> None:
    """Write every folder below `root`."""
    for number, (name, (network, shape, described)) in enumerate(FILES.items()):
        paddle.seed(number)
        folder = root / name
        layer = network()
        layer.eval()
        spec = InputSpec(shape, "float32", "x")
        paddle.jit.save(layer, str(folder / "inference"), input_spec=[spec])
        described = {"Global": {"model_name": name}, **described}
        (folder / "inference.yml").write_text(yaml.safe_dump(described), "utf-8")
        (folder / "config.json").write_text(json.dumps(described), "utf-8")
        (folder / "README.md").write_text(README, "utf-8")
        (folder / ".cache").mkdir()
        (folder / ".cache" / "inference.yml").write_text("hidden: true\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
