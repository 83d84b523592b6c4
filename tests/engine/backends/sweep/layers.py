"""Programs of one layer or two: convolutions, activations, pictures, norms and reductions."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import nn

from tests.engine.backends.sweep.program import (
    BOX,
    CELLS,
    LINE,
    PICTURE,
    ROW,
    WORDS,
    Input,
    Program,
    stacked,
)

LINEAR = partial(nn.Linear, 6, 5)


def _of(
    module: Any, names: str, change: Callable[[Any], Any] | None = None
) -> dict[str, Callable[..., Any]]:
    """Return functions of the module by their names, each applied to `change(x)` where given."""
    functions = {name: getattr(module, name) for name in names.split()}
    if change is None:
        return functions
    return {name: stacked(change, function) for name, function in functions.items()}


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    **_of(F, "relu relu6 sigmoid gelu silu swish hardswish hardsigmoid selu mish softplus"),
    **_of(F, "softsign tanhshrink hardtanh log_sigmoid softmax log_softmax"),
    **_of(paddle, "tanh abs exp square"),
    "gelu_tanh": partial(F.gelu, approximate=True),
    "hardsigmoid_other": partial(F.hardsigmoid, slope=0.2, offset=0.3),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.3),
    "elu": lambda x: F.elu(x, 1.3),
    "celu": lambda x: F.celu(x, 1.4),
    "softplus_beta": partial(F.softplus, beta=2, threshold=30),
    "softplus_threshold": partial(F.softplus, beta=1, threshold=4),
    "softshrink": lambda x: F.softshrink(x, 0.7),
    "hardshrink": lambda x: F.hardshrink(x, 0.7),
    "hardtanh_bounds": lambda x: F.hardtanh(x, -2.5, 3.5),
    "thresholded_relu": lambda x: F.thresholded_relu(x, 0.6),
    "clip": lambda x: paddle.clip(x, -2.0, 3.0),
    "stanh": lambda x: paddle.stanh(x, 0.5, 1.5),
}
UNARY: dict[str, Callable[..., Any]] = {
    **_of(paddle, "floor ceil round trunc frac sin cos atan asinh erf sign neg"),
    **_of(paddle, "tan sinh cosh expm1", lambda x: x / 8),
    **_of(paddle, "asin acos atanh", lambda x: x / 60),
    **_of(paddle, "acosh log2 rsqrt reciprocal", lambda x: x.abs() + 1),
    "log1p": lambda x: paddle.log1p(x.abs()),
    "cumsum": lambda x: paddle.cumsum(x, -1),
    "cumprod": lambda x: paddle.cumprod(x / 8, -1),
    "logcumsumexp": lambda x: paddle.logcumsumexp(x, -1),
    "remainder": lambda x: x % 2.5,
    "floor_divide": lambda x: x // 2.5,
    "silu": F.silu,
    "hardtanh": lambda x: F.hardtanh(x, -1.5, 1.5),
}
BINARY: dict[str, Callable[..., Any]] = {
    **_of(paddle, "add subtract multiply maximum minimum fmax"),
    "divide": lambda x, y: x / (y.abs() + 0.5),
    "pow": lambda x, y: (x.abs() + 0.5) ** (y / 4),
    "remainder": lambda x, y: paddle.remainder(x, y.abs() + 0.5),
    "floor_divide": lambda x, y: paddle.floor_divide(x, y.abs() + 0.5),
    "greater": lambda x, y: (x > y).astype("float32"),
    "where": lambda x, y: paddle.where(x > y, x, y * 2),
}


def _convolutions() -> Iterator[Program]:
    kinds: dict[str, tuple[Callable[[], nn.Layer], Input]] = {
        "conv1d": (partial(nn.Conv1D, 4, 5, 3, padding=1), LINE),
        "conv2d": (partial(nn.Conv2D, 3, 4, 3, padding=1), PICTURE),
        "conv2d_strided": (partial(nn.Conv2D, 3, 4, 3, stride=2), PICTURE),
        "conv2d_dilated": (partial(nn.Conv2D, 3, 4, 3, dilation=2, padding=2), PICTURE),
        "conv2d_bare": (partial(nn.Conv2D, 3, 4, (3, 1), bias_attr=False), PICTURE),
        "conv2d_same": (partial(nn.Conv2D, 3, 4, 4, padding="SAME"), PICTURE),
        "conv2d_uneven": (partial(nn.Conv2D, 3, 4, 3, padding=[1, 0, 2, 1]), PICTURE),
        "conv2d_reflect": (
            partial(nn.Conv2D, 3, 4, 3, padding=1, padding_mode="reflect"),
            PICTURE,
        ),
        "conv2d_grouped": (partial(nn.Conv2D, 6, 4, 3, groups=2), CELLS),
        "depthwise": (partial(nn.Conv2D, 6, 6, 3, groups=6, padding=1), CELLS),
        "conv3d": (partial(nn.Conv3D, 2, 3, 3, padding=1), BOX),
        "transposed1d": (partial(nn.Conv1DTranspose, 4, 5, 3, stride=2), LINE),
        "transposed2d": (partial(nn.Conv2DTranspose, 3, 4, 4, stride=2, padding=1), PICTURE),
        "transposed2d_output": (
            partial(nn.Conv2DTranspose, 3, 4, 3, stride=2, padding=1, output_padding=1),
            PICTURE,
        ),
        "transposed2d_grouped": (partial(nn.Conv2DTranspose, 6, 4, 3, groups=2), CELLS),
        "transposed3d": (partial(nn.Conv3DTranspose, 2, 3, 3), BOX),
    }
    plain = ("relu", "hardswish", "leaky_relu", "hardtanh_bounds")
    for kind, (layer, inputs) in kinds.items():
        for activation in plain if inputs is PICTURE else plain[:2]:
            compute = stacked(ACTIVATIONS[activation])
            yield Program(f"{kind}_{activation}", compute, (inputs,), (layer,))
    last = partial(nn.Conv2D, 3, 4, 3, data_format="NHWC")
    yield Program("conv2d_nhwc", stacked(F.relu), (Input("n h w 3"),), (last,))
    conv = kinds["conv2d"][0]
    norm = partial(nn.BatchNorm2D, 4)
    for activation in ("relu", "relu6", "sigmoid", "silu", "mish", "gelu", "elu", "clip", "abs"):
        compute = stacked(ACTIVATIONS[activation])
        yield Program(f"conv2d_norm_{activation}", compute, (PICTURE,), (conv, norm))
    for first, second in (("tanh", "relu"), ("abs", "sigmoid"), ("relu", "hardswish")):
        compute = stacked(ACTIVATIONS[first], ACTIVATIONS[second])
        yield Program(f"conv2d_{first}_{second}", compute, (PICTURE,), (conv,))


def _activations() -> Iterator[Program]:
    for name, call in ACTIVATIONS.items():
        yield Program(f"linear_{name}", stacked(call), (ROW,), (LINEAR,))
        yield Program(f"alone_{name}", call, (CELLS,))
        yield Program(f"sum_{name}", lambda x, y, call=call: call(x + y), (WORDS, WORDS))
    yield Program("prelu", stacked(), (CELLS,), (partial(nn.PReLU, 6),))
    yield Program("prelu_one", stacked(), (CELLS,), (nn.PReLU,))
    yield Program("glu", F.glu, (WORDS,))
    yield Program("maxout", lambda x: F.maxout(x, 3), (CELLS,))
    yield Program("softmax_channels", lambda x: F.softmax(x, 1), (CELLS,))
    yield Program("log_softmax_channels", lambda x: F.log_softmax(x, 1), (CELLS,))
    pairs = [
        ("tanh", "relu"), ("abs", "sigmoid"), ("relu", "tanh"), ("gelu", "relu"), ("clip", "abs"),
        ("sigmoid", "square"), ("relu", "softmax"), ("hardswish", "relu6"), ("silu", "tanh"),
        ("abs", "leaky_relu"), ("exp", "tanh"), ("softplus", "tanh"), ("mish", "tanh"),
    ]  # fmt: skip
    for first, second in pairs:
        both = stacked(ACTIVATIONS[first], ACTIVATIONS[second])
        yield Program(f"linear_{first}_{second}", both, (ROW,), (LINEAR,))
        yield Program(
            f"matmul_{first}_{second}",
            lambda x, y, both=both: both(paddle.matmul(x, y, transpose_y=True)),
            (WORDS, WORDS),
        )


def _elementwise() -> Iterator[Program]:
    for name, call in UNARY.items():
        yield Program(
            f"read_again_{name}",
            lambda fc, x, call=call: (lambda y: paddle.concat([y - call(y), call(y)], -1))(fc(x)),
            (ROW,),
            (LINEAR,),
        )
    wide, column, channel = Input("n 6 h w"), Input("n 6 h 1"), Input("n 1 h w")
    for name, both in BINARY.items():
        yield Program(f"{name}_equal", both, (wide, wide))
        yield Program(f"{name}_broadcast_first", both, (column, wide))
        yield Program(f"{name}_broadcast_second", both, (wide, channel))
        yield Program(
            f"{name}_constant_first", lambda x, both=both: both(paddle.full([1], 2.5), x), (wide,)
        )
        yield Program(
            f"{name}_reduced_first", lambda x, both=both: both(x.sum(-1, keepdim=True), x), (WORDS,)
        )
    counts = Input("n 6", "int64", -900, 900)
    yield Program("floor_of_multiples", lambda x: (x.astype("float32") * 7) // 7, (counts,))
    yield Program("atan2", paddle.atan2, (wide, wide))
    yield Program("focal", lambda x, y: y / (x.abs() + 0.5), (wide, Input("n 1 1 1")))
    yield Program("both_broadcast", lambda x, y: x / (y.abs() + 0.5), (column, channel))
    yield Program("rank_broadcast", lambda x, y: y / (x.abs() + 0.5), (wide, Input("h 1")))
    yield Program("scaled", lambda x: (x * 0.5 + 1.5) / 3 - 2, (wide,))
    yield Program("constant_over", lambda x: 1.5 / (x.abs() + 1), (wide,))
    yield Program("normalised", lambda x: x / x.abs().sum(1, keepdim=True), (wide,))
    yield Program("lerp", lambda x, y: paddle.lerp(x, y, 0.3), (wide, wide))
    yield Program("isfinite", lambda x: paddle.isfinite(x / x).astype("float32"), (wide,))
    yield Program("logical", lambda x, y: paddle.logical_xor(x > 0, y > 1), (wide, wide))


def _pictures() -> Iterator[Program]:
    def resize(name: str, shape: Input = PICTURE, **options: Any) -> Program:
        return Program(f"resize_{name}", partial(F.interpolate, **options), (shape,))

    for mode in ("nearest", "bilinear", "bicubic"):
        for factor in (2, 3, 1.5, 1.3, 0.5):
            yield resize(f"{mode}_{factor}", mode=mode, scale_factor=factor)
        yield resize(f"{mode}_size", mode=mode, size=[11, 4])
        yield resize(f"{mode}_fixed", Input("n 3 7 6"), mode=mode, size=[5, 9])
        yield resize(f"{mode}_doubled", Input("n 3 7 6"), mode=mode, size=[14, 12])
        yield Program(
            f"resize_{mode}_like",
            lambda x, y, mode=mode: F.interpolate(
                x, [paddle.shape(y)[2] * 2, paddle.shape(y)[3] * 3], mode=mode
            ),
            (PICTURE, PICTURE),
        )
        if mode != "nearest":
            yield resize(f"{mode}_corners", mode=mode, size=[11, 4], align_corners=True)
            yield resize(f"{mode}_corners_2", mode=mode, scale_factor=2, align_corners=True)
    yield resize("bilinear_mode1", mode="bilinear", size=[11, 4], align_mode=1)
    yield resize("bilinear_mode1_2", mode="bilinear", scale_factor=2, align_mode=1)
    yield resize("area", mode="area", size=[3, 4])
    yield resize("linear", LINE, mode="linear", size=[13], data_format="NCW")
    yield resize("linear_2", LINE, mode="linear", scale_factor=2, data_format="NCW")
    yield resize("trilinear", BOX, mode="trilinear", size=[4, 8, 3], data_format="NCDHW")
    yield resize("trilinear_2", BOX, mode="trilinear", scale_factor=2, data_format="NCDHW")
    uneven = Input("n 3 7 9")
    for ceil in (False, True):
        for kernel, stride, padding in ((2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 3, 2)):
            options = {"kernel_size": kernel, "stride": stride, "padding": padding}
            options["ceil_mode"] = ceil
            name = f"{kernel}_{stride}_{padding}{'_ceil' * ceil}"
            # A last window of padding alone is -3.4e38 in Paddle and no window in other engines.
            yield Program(f"max_pool_{name}", partial(F.max_pool2d, **options), (uneven,))
            for exclusive in (True, False):
                yield Program(
                    f"avg_pool_{name}{'' if exclusive else '_all'}",
                    partial(F.avg_pool2d, exclusive=exclusive, **options),
                    (PICTURE,),
                )
    yield Program("max_pool1d", lambda x: F.max_pool1d(x, 3, 2, 1), (LINE,))
    yield Program("avg_pool1d", lambda x: F.avg_pool1d(x, 3, 2, 1), (LINE,))
    yield Program("max_pool3d", lambda x: F.max_pool3d(x, 2, 2), (BOX,))
    yield Program("avg_pool3d", lambda x: F.avg_pool3d(x, 2, 2), (BOX,))
    yield Program("avg_pool_divisor", lambda x: F.avg_pool2d(x, 2, divisor_override=3), (PICTURE,))
    for size in (1, 2, 3, (3, 1)):
        for kind in ("avg", "max"):
            pool = getattr(F, f"adaptive_{kind}_pool2d")
            yield Program(f"adaptive_{kind}_{size}", lambda x, p=pool, s=size: p(x, s), (PICTURE,))
    last = Input("n h w 3")
    yield Program("max_pool_nhwc", lambda x: F.max_pool2d(x, 2, data_format="NHWC"), (last,))
    yield resize("bilinear_nhwc", last, mode="bilinear", size=[11, 4], data_format="NHWC")
    yield Program("adaptive_uneven", lambda x: F.adaptive_avg_pool2d(x, (2, 4)), (uneven,))
    yield Program("adaptive_max_uneven", lambda x: F.adaptive_max_pool2d(x, (2, 4)), (uneven,))
    yield Program(
        "adaptive_divides", lambda x: F.adaptive_avg_pool2d(x, (3, 4)), (Input("n 3 6 12"),)
    )
    yield Program("adaptive_avg1d", lambda x: F.adaptive_avg_pool1d(x, 4), (LINE,))
    yield Program("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), (Input("n 4 h w"),))
    yield Program("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), (Input("n 3 6 8"),))
    yield Program("channel_shuffle", lambda x: F.channel_shuffle(x, 3), (CELLS,))
    yield Program("unfold", lambda x: F.unfold(x, 3, paddings=1), (Input("n 3 6 8"),))
    for mode in ("bilinear", "nearest"):
        for corners in (True, False):
            yield Program(
                f"grid_sample_{mode}_{corners}",
                lambda x, g, m=mode, c=corners: F.grid_sample(x, g / 8, m, align_corners=c),
                (PICTURE, Input("n h w 2")),
            )
    for mode in ("constant", "reflect", "replicate", "circular"):
        yield Program(f"pad_{mode}", lambda x, m=mode: F.pad(x, [1, 2, 2, 1], m), (PICTURE,))
    yield Program("pad_value", lambda x: F.pad(x, [1, 2, 0, 1], value=1.5), (PICTURE,))


def _norms() -> Iterator[Program]:
    kinds: dict[str, tuple[Callable[[], nn.Layer], Input]] = {
        "batch1d": (partial(nn.BatchNorm1D, 4), LINE),
        "batch2d": (partial(nn.BatchNorm2D, 3), PICTURE),
        "batch2d_nhwc": (partial(nn.BatchNorm2D, 3, data_format="NHWC"), Input("n h w 3")),
        "batch3d": (partial(nn.BatchNorm3D, 2), BOX),
        "layer": (partial(nn.LayerNorm, 8), WORDS),
        "layer_two": (partial(nn.LayerNorm, [4, 8]), Input("n 4 8")),
        "layer_bare": (partial(nn.LayerNorm, 8, weight_attr=False, bias_attr=False), WORDS),
        "group": (partial(nn.GroupNorm, 2, 6), CELLS),
        "group_all": (partial(nn.GroupNorm, 1, 6), CELLS),
        "group_nhwc": (partial(nn.GroupNorm, 2, 6, data_format="NHWC"), Input("n h w 6")),
        "instance": (partial(nn.InstanceNorm2D, 3), PICTURE),
        "instance1d": (partial(nn.InstanceNorm1D, 4), LINE),
    }
    for kind, (layer, inputs) in kinds.items():
        yield Program(f"norm_{kind}", stacked(), (inputs,), (layer,))
        yield Program(f"norm_{kind}_relu", stacked(F.relu), (inputs,), (layer,))
    inf = float("inf")
    for p in (1, 2, 3, 0, inf, -inf):
        yield Program(f"norm_p_{p}", lambda x, p=p: paddle.norm(x, p, axis=1), (CELLS,))
    yield Program("norm_p_kept", lambda x: x / paddle.norm(x, 2, 1, keepdim=True), (CELLS,))
    yield Program("norm_p_last", lambda x: paddle.norm(x, inf, axis=-1, keepdim=True), (WORDS,))
    yield Program("norm_p_all", lambda x: x / paddle.norm(x), (CELLS,))
    yield Program("normalize", lambda x: F.normalize(x, axis=1), (CELLS,))
    yield Program("cosine", lambda x, y: F.cosine_similarity(x, y, axis=-1), (WORDS, WORDS))
    yield Program(
        "rms_norm", lambda x: x * paddle.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6), (WORDS,)
    )


def _reductions() -> Iterator[Program]:
    calls = {
        **_of(paddle, "sum mean max min logsumexp std var amax amin"),
        "prod": lambda x, **k: paddle.prod(x / 8, **k),
        "any": lambda x, **k: paddle.any(x > 5, **k),
        "all": lambda x, **k: paddle.all(x > -5, **k),
        "count_nonzero": lambda x, **k: paddle.count_nonzero(x > 0, **k),
    }
    for name, call in calls.items():
        yield Program(f"{name}_last", lambda x, call=call: call(x, axis=-1), (WORDS,))
        yield Program(
            f"{name}_kept", lambda x, call=call: call(x, axis=[1, 2], keepdim=True), (CELLS,)
        )
        yield Program(f"{name}_everything", lambda x, call=call: x * call(x.abs()), (CELLS,))
    for name, call in (("argmax", paddle.argmax), ("argmin", paddle.argmin)):
        yield Program(f"{name}_last", lambda x, call=call: call(x, axis=-1), (WORDS,))
        yield Program(f"{name}_kept", lambda x, call=call: call(x, 1, keepdim=True), (CELLS,))
    yield Program("median", lambda x: paddle.median(x, axis=-1), (Input("n t 7"),))
    yield Program("topk", lambda x: paddle.topk(x, 3, axis=-1), (WORDS,))
    yield Program("sort", lambda x: paddle.sort(x, axis=-1, descending=True), (WORDS,))
    yield Program("argsort", lambda x: paddle.argsort(x, axis=1), (WORDS,))
    yield Program("kthvalue", lambda x: paddle.kthvalue(x, 2, axis=-1)[0], (WORDS,))
    yield Program("cummax", lambda x: paddle.cummax(x, axis=-1)[0], (WORDS,))


def programs() -> Iterator[Program]:
    yield from _convolutions()
    yield from _activations()
    yield from _elementwise()
    yield from _pictures()
    yield from _norms()
    yield from _reductions()
