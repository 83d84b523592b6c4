"""U²-Netp as a trainable PyTorch module whose parameters carry the upstream names.

Architecture: Qin et al., "U²-Net: Going deeper with nested U-structure for salient object
detection", Pattern Recognition 106 (2020), the small variant (1.13 M parameters).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(NamedTuple):
    """One residual U-block: its name, input channels, depth, and whether it dilates, not pools."""

    name: str
    channels_in: int
    depth: int
    dilated: bool


MIDDLE = 16
WIDTH = 64
ENCODER = (
    Block("stage1", 3, 7, False),
    Block("stage2", WIDTH, 6, False),
    Block("stage3", WIDTH, 5, False),
    Block("stage4", WIDTH, 4, False),
    Block("stage5", WIDTH, 4, True),
    Block("stage6", WIDTH, 4, True),
)
DECODER = (
    Block("stage5d", 2 * WIDTH, 4, True),
    Block("stage4d", 2 * WIDTH, 4, False),
    Block("stage3d", 2 * WIDTH, 5, False),
    Block("stage2d", 2 * WIDTH, 6, False),
    Block("stage1d", 2 * WIDTH, 7, False),
)


def _halve(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 2, stride=2, ceil_mode=True)


def _resize_like(x: Tensor, target: Tensor) -> Tensor:
    if x.shape[2:] == target.shape[2:]:
        return x
    return F.interpolate(x, size=target.shape[2:], mode="bilinear", align_corners=False)


class ConvBnRelu(nn.Module):
    """3x3 convolution, batch normalisation, ReLU; size-preserving at any dilation."""

    def __init__(self, channels_in: int, channels_out: int, *, dilation: int = 1) -> None:
        super().__init__()
        self.conv_s1 = nn.Conv2d(channels_in, channels_out, 3, padding=dilation, dilation=dilation)
        self.bn_s1 = nn.BatchNorm2d(channels_out)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn_s1(self.conv_s1(x)), inplace=True)


class ResidualUBlock(nn.Module):
    """A small U-Net added to its own input projection; `dilated` keeps one size throughout."""

    def __init__(self, channels_in: int, *, depth: int, dilated: bool) -> None:
        super().__init__()
        self.depth = depth
        self.dilated = dilated
        # The bottom of a pooling block looks twice as wide instead of pooling once more.
        dilations = [2**i if dilated else 1 for i in range(depth - 1)]
        dilations.append(2 ** (depth - 1) if dilated else 2)
        self.rebnconvin = ConvBnRelu(channels_in, WIDTH)
        for level in range(1, depth + 1):
            source = WIDTH if level == 1 else MIDDLE
            block = ConvBnRelu(source, MIDDLE, dilation=dilations[level - 1])
            self.add_module(f"rebnconv{level}", block)
        for level in range(depth - 1, 0, -1):
            target = WIDTH if level == 1 else MIDDLE
            block = ConvBnRelu(2 * MIDDLE, target, dilation=dilations[level - 1])
            self.add_module(f"rebnconv{level}d", block)

    def forward(self, x: Tensor) -> Tensor:
        entry: Tensor = self.rebnconvin(x)
        down = [self.rebnconv1(entry)]
        for level in range(2, self.depth + 1):
            pooled = level < self.depth and not self.dilated
            source = _halve(down[-1]) if pooled else down[-1]
            down.append(self.get_submodule(f"rebnconv{level}")(source))
        up = down.pop()
        for level in range(self.depth - 1, 0, -1):
            skip = down.pop()
            joined = torch.cat((_resize_like(up, skip), skip), 1)
            up = self.get_submodule(f"rebnconv{level}d")(joined)
        return up + entry


class U2Netp(nn.Module):
    """Image to saliency: N×3×H×W normalised picture to seven N×1×H×W logits.

    Order: the fused map (upstream d0), then the side maps from fine (d1) to coarse (d6).
    """

    def __init__(self) -> None:
        super().__init__()
        for block in (*ENCODER, *DECODER):
            self.add_module(
                block.name,
                ResidualUBlock(block.channels_in, depth=block.depth, dilated=block.dilated),
            )
        for side in range(1, 7):
            self.add_module(f"side{side}", nn.Conv2d(WIDTH, 1, 3, padding=1))
        self.outconv = nn.Conv2d(6, 1, 1)

    def forward(self, x: Tensor, *, coarse: bool = False) -> tuple[Tensor, ...]:
        """All seven maps at the input's size; or, `coarse`, only d2…d6 at the size of d2.

        The finest decoder stage is nearly half of all arithmetic and adds little to what the
        deeper stages learn, so training may leave it out of most steps.
        """
        features: list[Tensor] = []
        for block in ENCODER:
            source = _halve(features[-1]) if features else x
            features.append(self.get_submodule(block.name)(source))
        up = features.pop()
        levels = [up]
        for block in DECODER[:-1] if coarse else DECODER:
            skip = features.pop()
            up = self.get_submodule(block.name)(torch.cat((_resize_like(up, skip), skip), 1))
            levels.append(up)
        canvas = up if coarse else x
        sides = [
            _resize_like(self.get_submodule(f"side{i}")(level), canvas)
            for i, level in enumerate(reversed(levels), start=2 if coarse else 1)
        ]
        if coarse:
            return tuple(sides)
        return (self.outconv(torch.cat(sides, 1)), *sides)
