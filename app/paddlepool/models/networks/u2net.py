"""U²-Net and U²-Netp (Qin et al., 2020) as one Paddle network described by a table of its stages.

Parameters carry the names of the upstream module tree (`stage1.rebnconvin.conv_s1.weight`, ...),
except those that replace the side outputs. Batch normalisation is folded into the convolutions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn


@dataclass(frozen=True, slots=True)
class Stage:
    """Dimensions of one residual U-block of `depth` levels.

    `flat` blocks use dilated convolutions instead of pooling. `inputs`, `middle` and `outputs` are
    numbers of channels.
    """

    name: str
    depth: int
    inputs: int
    middle: int
    outputs: int
    flat: bool = False


U2NETP = (
    Stage("stage1", 7, 3, 16, 64),
    Stage("stage2", 6, 64, 16, 64),
    Stage("stage3", 5, 64, 16, 64),
    Stage("stage4", 4, 64, 16, 64),
    Stage("stage5", 4, 64, 16, 64, flat=True),
    Stage("stage6", 4, 64, 16, 64, flat=True),
    Stage("stage5d", 4, 128, 16, 64, flat=True),
    Stage("stage4d", 4, 128, 16, 64),
    Stage("stage3d", 5, 128, 16, 64),
    Stage("stage2d", 6, 128, 16, 64),
    Stage("stage1d", 7, 128, 16, 64),
)
U2NET = (
    Stage("stage1", 7, 3, 32, 64),
    Stage("stage2", 6, 64, 32, 128),
    Stage("stage3", 5, 128, 64, 256),
    Stage("stage4", 4, 256, 128, 512),
    Stage("stage5", 4, 512, 256, 512, flat=True),
    Stage("stage6", 4, 512, 256, 512, flat=True),
    Stage("stage5d", 4, 1024, 256, 512, flat=True),
    Stage("stage4d", 4, 1024, 128, 256),
    Stage("stage3d", 5, 512, 64, 128),
    Stage("stage2d", 6, 256, 32, 64),
    Stage("stage1d", 7, 128, 16, 64),
)


def upsample_like(source: Tensor, target: Tensor) -> Tensor:
    """Resize `source` [N,C,h,w] bilinearly (half-pixel centres) to the size of `target`."""
    return F.interpolate(
        source, size=target.shape[2:], mode="bilinear", align_corners=False, align_mode=0
    )


class ConvBlock(nn.Layer):
    """3×3 convolution and ReLU; keeps height and width."""

    def __init__(self, inputs: int, outputs: int, *, dilation: int) -> None:
        super().__init__()
        self.conv_s1 = nn.Conv2D(inputs, outputs, 3, padding=dilation, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv_s1(x))


class ResidualUBlock(nn.Layer):
    """A small U-Net whose output is added to that of its first convolution (the paper's RSU)."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.depth, self.flat = stage.depth, stage.flat
        depth, middle = stage.depth, stage.middle

        def block(name: str, inputs: int, outputs: int, dilation: int = 1) -> None:
            self.add_sublayer(f"rebnconv{name}", ConvBlock(inputs, outputs, dilation=dilation))

        block("in", stage.inputs, stage.outputs)
        block("1", stage.outputs, middle)
        for level in range(2, depth):
            block(f"{level}", middle, middle, 2 ** (level - 1) if self.flat else 1)
        block(f"{depth}", middle, middle, 2 ** (depth - 1) if self.flat else 2)
        for level in range(depth - 1, 1, -1):
            block(f"{level}d", 2 * middle, middle, 2 ** (level - 1) if self.flat else 1)
        block("1d", 2 * middle, stage.outputs)

    def _apply(self, name: str, x: Tensor) -> Tensor:
        return self._sub_layers[f"rebnconv{name}"](x)

    def forward(self, x: Tensor) -> Tensor:
        entry = self._apply("in", x)
        encoded = [self._apply("1", entry)]
        for level in range(2, self.depth):
            below = encoded[-1] if self.flat else _halve(encoded[-1])
            encoded.append(self._apply(f"{level}", below))
        y = self._apply(f"{self.depth}", encoded[-1])
        for level in range(self.depth - 1, 0, -1):
            skip = encoded[level - 1]
            if not self.flat and level < self.depth - 1:
                y = upsample_like(y, skip)
            y = self._apply(f"{level}d", paddle.concat([y, skip], axis=1))
        return y + entry


def _halve(x: Tensor) -> Tensor:
    return F.max_pool2d(x, kernel_size=2, stride=2, ceil_mode=True)


class U2NetMask(nn.Layer):
    """Salient-object network: float32 image [N,3,H,W] to the fused mask `d0` [N,1,H,W] in 0..1.

    `d0` equals upstream's; the six side outputs are left out. Upstream computes each side output by
    a 3×3 convolution to one channel, which leaves fifteen of sixteen vector lanes idle, and fuses
    the six by the 1×1 convolution `outconv`. Here, a 1×1 convolution multiplies each feature by the
    nine taps of its kernel, times the weight in `outconv`. A 3×3 convolution with a fixed kernel
    then shifts and adds the nine products. Upsampling does not change a constant, so the biases of
    the six side outputs and of `outconv` are added into one.
    """

    def __init__(self, stages: Sequence[Stage] = U2NETP) -> None:
        super().__init__()
        for stage in stages:
            self.add_sublayer(stage.name, ResidualUBlock(stage))
        # The stage that each side output reads, from fine to coarse.
        sources = ("stage1d", "stage2d", "stage3d", "stage4d", "stage5d", "stage6")
        widths = {stage.name: stage.outputs for stage in stages}
        for index, source in enumerate(sources, start=1):
            self.add_sublayer(f"taps{index}", nn.Conv2D(widths[source], 9, 1, bias_attr=False))
        self.place = nn.Conv2D(9, 1, 3, padding=1, bias_attr=False)
        self.bias = self.create_parameter([1], is_bias=True)

    def features(self, image: Tensor) -> list[Tensor]:
        """Return the six features that the side outputs read, fine to coarse."""
        stage = self._sub_layers
        encoded = [stage["stage1"](image)]
        for index in range(2, 7):
            encoded.append(stage[f"stage{index}"](_halve(encoded[-1])))
        decoded = [encoded[5]]
        for index in range(5, 0, -1):
            skip = encoded[index - 1]
            y = upsample_like(decoded[0], skip)
            decoded.insert(0, stage[f"stage{index}d"](paddle.concat([y, skip], axis=1)))
        return decoded

    def forward(self, image: Tensor) -> Tensor:
        logit = self.bias
        for index, feature in enumerate(self.features(image)):
            side = self.place(self._sub_layers[f"taps{index + 1}"](feature))
            logit = logit + (side if index == 0 else upsample_like(side, image))
        return F.sigmoid(logit)
