"""Programs of shapes, matrices, attention, recurrence, types and blocks."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import paddle
import paddle.nn.functional as F
from paddle import nn

from tests.engine.backends.sweep.program import (
    BOX,
    CELLS,
    IDS,
    LINE,
    PICTURE,
    ROW,
    WORDS,
    Input,
    Program,
    stacked,
)

INDICES = Input("n 3", "int64", 0, 5)


def _shapes() -> Iterator[Program]:
    calls: dict[str, tuple[Callable[[Any], Any], Input]] = {
        "reshape": (lambda x: x.reshape([0, 0, 2, 4]), WORDS),
        "reshape_free": (lambda x: x.reshape([-1, 2, 4]), WORDS),
        "flatten": (lambda x: paddle.flatten(x, 1), PICTURE),
        "transpose": (lambda x: x.transpose([0, 2, 3, 1]), PICTURE),
        "transpose_back": (lambda x: F.relu(x.transpose([0, 2, 1])).transpose([0, 2, 1]), WORDS),
        "moveaxis": (lambda x: paddle.moveaxis(x, 1, -1), PICTURE),
        "squeeze": (lambda x: x.squeeze(1), Input("n 1 h w")),
        "unsqueeze": (lambda x: x.unsqueeze([1, 3]), WORDS),
        "split": (lambda x: paddle.split(x, [1, 3, 4], axis=-1), WORDS),
        "chunk": (lambda x: paddle.chunk(x, 2, axis=1), CELLS),
        "unbind": (lambda x: paddle.unbind(x, axis=1), PICTURE),
        "stack": (lambda x: paddle.stack([x, x * 2, F.relu(x)], axis=1), WORDS),
        "concat": (lambda x: paddle.concat([x, x * 2, F.relu(x)], axis=1), PICTURE),
        "tile": (lambda x: paddle.tile(x, [1, 2, 3]), WORDS),
        "expand": (lambda x: x.unsqueeze(1).expand([-1, 3, -1, -1]), WORDS),
        "repeat_interleave": (lambda x: paddle.repeat_interleave(x, 2, axis=1), CELLS),
        "flip": (lambda x: paddle.flip(x, [2, 3]), PICTURE),
        "roll": (lambda x: paddle.roll(x, 2, axis=-1), WORDS),
        "slice": (lambda x: x[:, 1:3, :4], WORDS),
        "slice_strided": (lambda x: x[:, ::2, 1::3], WORDS),
        "slice_negative": (lambda x: x[:, -3:, :-2], WORDS),
        "slice_backwards": (lambda x: x[:, :, ::-1], WORDS),
        "focus": (
            lambda x: paddle.concat([x[..., ::2, ::2], x[..., 1::2, ::2]], 1),
            Input("n 3 6 8"),
        ),
        "tril": (paddle.tril, WORDS),
        "triu": (lambda x: paddle.triu(x, 1), WORDS),
        "diagonal": (lambda x: paddle.diagonal(x, axis1=1, axis2=2), WORDS),
        "diag_embed": (paddle.diag_embed, ROW),
        "shape_of": (lambda x: x / paddle.shape(x)[2].astype("float32"), WORDS),
        "arange": (lambda x: x + paddle.arange(x.shape[-1]).astype("float32"), WORDS),
        "masked_fill": (lambda x: paddle.where(x > 1, paddle.full_like(x, -5.0), x), WORDS),
        "unstacked": (lambda x: x.reshape([0, 0, 4, 2]).transpose([0, 2, 1, 3]), WORDS),
        "meshgrid": (lambda x: paddle.meshgrid(x[0, 0], x[0, 1])[0] + x.sum(), WORDS),
        "as_strided_windows": (lambda x: paddle.stack([x[:, :-1], x[:, 1:]], 2), WORDS),
    }  # fmt: skip
    for name, (call, shape) in calls.items():
        yield Program(name, call, (shape,))
    yield Program(
        "windows",
        lambda x: x.reshape([0, 3, 2, 4, 3, 4]).transpose([0, 2, 4, 3, 5, 1]).flatten(1, 2),
        (Input("n 3 8 12"),),
    )
    yield Program("gather", lambda x, i: paddle.gather(x, i[0], axis=1), (WORDS, INDICES))
    yield Program("index_select", lambda x, i: paddle.index_select(x, i[1], 1), (WORDS, INDICES))
    yield Program("take_along_axis", lambda x, i: paddle.take_along_axis(x, i, 1), (ROW, INDICES))
    yield Program(
        "put_along_axis",
        lambda x, i: paddle.put_along_axis(x, i[:, :1], 9.0, 1),
        (ROW, INDICES),
    )
    yield Program("gather_nd", lambda x, i: paddle.gather_nd(x, i[:, :1] // 3), (WORDS, INDICES))
    yield Program(
        "scatter_nd_add",
        lambda x, i: paddle.scatter_nd_add(x, i[:2, :1] // 3, x[:2] * 2),
        (WORDS, INDICES),
    )
    yield Program("index_sample", paddle.index_sample, (ROW, INDICES))
    yield Program("one_hot", lambda i: F.one_hot(i, 5), (INDICES,))
    yield Program("sequence_mask", lambda i: F.sequence_mask(i, 6, "float32"), (INDICES,))
    yield Program("searchsorted", lambda x, y: paddle.searchsorted(paddle.sort(x), y), (ROW, ROW))
    yield Program("bucketize", lambda x: paddle.bucketize(x, paddle.arange(-3.0, 4)), (ROW,))


def _matrices() -> Iterator[Program]:
    square, left, right = Input("n 5 5"), Input("n t 8"), Input("n 8 3")
    calls: dict[str, tuple[Callable[..., Any], tuple[Input, ...]]] = {
        "matmul": (paddle.matmul, (left, right)),
        "matmul_transposed": (partial(paddle.matmul, transpose_x=True), (left, left)),
        "matmul_shared": (lambda x, y: x @ y[0], (left, right)),
        "matmul_vector": (lambda x, y: x @ y[0, 0], (left, Input("n 2 8"))),
        "matmul_scaled": (lambda x, y: (x @ y) * 0.125 + 1, (left, right)),
        "matmul_residual": (lambda x, y: x @ y + x, (square, square)),
        "bmm": (paddle.bmm, (left, right)),
        "einsum": (lambda x, y: paddle.einsum("nij,njk->nki", x, y), (square, square)),
        "einsum_heads": (
            lambda x, y: paddle.einsum("nqhd,nkhd->nhqk", x, y),
            (Input("n t 2 4"), Input("n t 2 4")),
        ),
        "outer": (lambda x, y: x.unsqueeze(-1) * y.unsqueeze(1), (ROW, ROW)),
        "dot": (lambda x, y: paddle.dot(x, y), (ROW, ROW)),
        "addmm": (lambda x, y: paddle.addmm(x[0], y[0], y[1]), (square, square)),
        "cross": (lambda x, y: paddle.cross(x, y, axis=1), (Input("n 3 4"), Input("n 3 4"))),
        "kron": (lambda x, y: paddle.kron(x[0], y[0]) * x.sum(), (square, square)),
        "trace": (lambda x: paddle.trace(x, axis1=1, axis2=2), (square,)),
        "cdist": (lambda x, y: paddle.cdist(x, y), (left, left)),
        "gram": (lambda x: (lambda f: f @ f.transpose([0, 2, 1]))(x.flatten(2)), (PICTURE,)),
        "fft2": (lambda x: paddle.abs(paddle.fft.fft2(x)), (Input("n 3 6 4"),)),
        "rfft": (lambda x: paddle.abs(paddle.fft.rfft(x)), (ROW,)),
    }
    for name, (call, inputs) in calls.items():
        yield Program(name, call, inputs)
    linear = partial(nn.Linear, 8, 5)
    yield Program("linear_3d", stacked(), (WORDS,), (linear,))
    yield Program("linear_bare", stacked(), (WORDS,), (partial(linear, bias_attr=False),))
    yield Program(
        "linear_residual", lambda fc, x: F.relu(fc(x) + x), (WORDS,), (partial(nn.Linear, 8, 8),)
    )
    yield Program(
        "mlp",
        lambda a, b, x: b(F.gelu(a(x))) + x,
        (WORDS,),
        (partial(nn.Linear, 8, 16), partial(nn.Linear, 16, 8)),
    )
    yield Program("bilinear", lambda f, x, y: f(x, y), (ROW, ROW), (partial(nn.Bilinear, 6, 6, 3),))


def _attention() -> Iterator[Program]:
    heads = partial(nn.MultiHeadAttention, 8, 2)
    yield Program("multi_head", stacked(), (WORDS,), (heads,))
    yield Program("multi_head_cross", lambda a, x, y: a(x, y, y), (WORDS, WORDS), (heads,))
    yield Program(
        "multi_head_masked",
        lambda a, x: a(x, x, x, paddle.triu(paddle.full([9, 9], -1e4), 1)),
        (Input("n 9 8"),),
        (heads,),
    )
    for before in (False, True):
        layer = partial(nn.TransformerEncoderLayer, 8, 2, 16, 0.1, normalize_before=before)
        yield Program(f"encoder_{before}", stacked(), (WORDS,), (layer,))
    decoder = partial(nn.TransformerDecoderLayer, 8, 2, 16, 0.1)
    yield Program("decoder", lambda d, x, y: d(x, y), (WORDS, WORDS), (decoder,))
    parts = (Input("n t 2 4"),) * 3
    yield Program("scaled_dot_product", F.scaled_dot_product_attention, parts)
    table = partial(nn.Embedding, 50, 8)
    yield Program("embedding", stacked(), (IDS,), (table,))
    yield Program("embedding_padding", stacked(), (IDS,), (partial(table, padding_idx=0),))
    yield Program(
        "embedding_positions",
        lambda e, p, n, i: n(e(i) + p(paddle.arange(paddle.shape(i)[1]).unsqueeze(0))),
        (IDS,),
        (table, partial(nn.Embedding, 12, 8), partial(nn.LayerNorm, 8)),
    )
    yield Program(
        "masked_mean",
        lambda e, i: (lambda m: (e(i) * m).sum(1) / m.sum(1))((i > 9).astype("float32")[..., None]),
        (IDS,),
        (table,),
    )
    yield Program(
        "rotary",
        lambda x: (lambda a, b: paddle.concat([a * x.cos()[..., :4] - b, b + a], -1))(
            *paddle.chunk(x, 2, -1)
        ),
        (WORDS,),
    )


def _recurrence() -> Iterator[Program]:
    kinds = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.SimpleRNN}
    lengths = Input("n", "int64", 2, 6)

    def outputs(layer: Any, x: Any, n: Any = None) -> Any:
        return layer(x, sequence_length=n)[0]

    def states(layer: Any, x: Any) -> Any:
        last = layer(x)[1]
        last = last if isinstance(last, tuple | list) else [last]
        return paddle.concat([paddle.flatten(s.transpose([1, 0, 2]), 1) for s in last], -1)

    for name, kind in kinds.items():
        one = partial(kind, 8, 5)
        two = partial(one, num_layers=2)
        both = partial(one, direction="bidirect")
        yield Program(name, outputs, (WORDS,), (one,))
        yield Program(f"{name}_both_ways", outputs, (WORDS,), (both,))
        yield Program(f"{name}_stacked", outputs, (WORDS,), (two,))
        yield Program(f"{name}_states", states, (WORDS,), (one,))
        yield Program(f"{name}_stacked_states", states, (WORDS,), (two,))
        yield Program(f"{name}_lengths", outputs, (WORDS, lengths), (one,))
    yield Program("lstm_cell", lambda c, x: c(x)[0], (ROW,), (partial(nn.LSTMCell, 6, 5),))
    yield Program("gru_cell", lambda c, x: c(x)[0], (ROW,), (partial(nn.GRUCell, 6, 5),))


def _types() -> Iterator[Program]:
    wide = Input("n 6", "int64", -(2**40), 2**40)
    small, narrow = Input("n 6", "int64", -50, 50), Input("n 6", "int32", -50, 50)
    double = Input("n 6", "float64")
    yield Program("int64_wide", lambda x: x * 3 + 7, (wide,))
    yield Program("int64_wide_constant", lambda x: x * 3 + 2**40, (small,))
    yield Program("int64_wide_compare", lambda x: x > 2**33, (wide,))
    yield Program("int64_small", lambda x: x * 3 + 7, (small,))
    yield Program("int32", lambda x: x * 3 + 7, (narrow,))
    yield Program("int_divide", lambda x: x // 7, (small,))
    yield Program("int_remainder", lambda x: x % 7, (small,))
    yield Program("int_mean", lambda x: x.astype("float32").mean(-1), (small,))
    yield Program("float64_sum", lambda x: (x * 1e8 + 1e-3).sum(-1), (double,))
    yield Program("float64_tiny", lambda x: (x + 1e-12) - x, (double,))
    yield Program("float64_matmul", lambda x, y: x @ y.transpose([1, 0]), (double, double))
    yield Program("cast_int", lambda x: x.astype("int32"), (ROW,))
    yield Program("cast_int64", lambda x: (x * 100).astype("int64"), (ROW,))
    yield Program("cast_uint8", lambda x: x.abs().astype("uint8"), (ROW,))
    yield Program("cast_bool", lambda x: (x > 0).astype("bool"), (ROW,))
    yield Program(
        "picture_bytes", lambda x: x.astype("float32") / 255, (Input("n 3 h w", "uint8", 0, 256),)
    )
    yield Program("and_or", lambda x, y: (x > 0) & (y > 0) | (x < -3), (ROW, ROW))
    yield Program("bitwise", lambda x: paddle.bitwise_and(x, paddle.full_like(x, 6)), (narrow,))


def _blocks() -> Iterator[Program]:
    conv = partial(nn.Conv2D, padding=1, kernel_size=3)
    norm = partial(nn.BatchNorm2D, 6)
    same = partial(conv, 6, 6)
    layers = same, norm, same
    yield Program("residual", lambda a, n, b, x: F.relu(b(F.relu(n(a(x)))) + x), (CELLS,), layers)
    yield Program("residual_bare", lambda a, b, x: b(F.relu(a(x))) + x, (CELLS,), (same, same))
    yield Program(
        "squeeze_excite",
        lambda a, b, x: x * F.hardsigmoid(b(F.relu(a(F.adaptive_avg_pool2d(x, 1))))),
        (CELLS,),
        (partial(nn.Conv2D, 6, 2, 1), partial(nn.Conv2D, 2, 6, 1)),
    )
    yield Program(
        "inception",
        lambda a, b, x: F.relu(paddle.concat([a(x), b(x), F.max_pool2d(x, 3, 1, 1)], 1)),
        (CELLS,),
        (same, partial(nn.Conv2D, 6, 3, 1)),
    )
    yield Program(
        "unet",
        lambda a, b, c, x: c(
            paddle.concat([a(x), F.interpolate(b(F.max_pool2d(a(x), 2)), scale_factor=2)], 1)
        ),
        (Input("n 6 8 12"),),
        (same, same, partial(conv, 12, 2)),
    )
    yield Program(
        "pyramid",
        lambda a, b, x: b(x) + F.interpolate(a(F.max_pool2d(x, 2)), scale_factor=2, mode="nearest"),
        (Input("n 6 8 12"),),
        (same, same),
    )
    yield Program(
        "inverted_residual",
        lambda a, b, c, x: c(F.hardswish(b(F.hardswish(a(x))))) + x,
        (CELLS,),
        (
            partial(nn.Conv2D, 6, 12, 1),
            partial(conv, 12, 12, groups=12),
            partial(nn.Conv2D, 12, 6, 1),
        ),
    )
    yield Program(
        "classifier",
        lambda a, fc, x: F.softmax(fc(F.relu(a(x)).mean([2, 3]))),
        (CELLS,),
        (same, partial(nn.Linear, 6, 5)),
    )
    yield Program(
        "patches",
        lambda a, n, x: n(a(x).flatten(2).transpose([0, 2, 1])),
        (Input("n 3 8 12"),),
        (partial(nn.Conv2D, 3, 8, 4, stride=4), partial(nn.LayerNorm, 8)),
    )
    yield Program(
        "ctc_head",
        lambda a, r, fc, x: F.softmax(fc(r(a(x).mean(2).transpose([0, 2, 1]))[0])),
        (CELLS,),
        (same, partial(nn.LSTM, 6, 4, direction="bidirect"), partial(nn.Linear, 8, 7)),
    )
    yield Program("max_and_mean", lambda x: x.max([2, 3]) + x.mean([2, 3]), (PICTURE,))
    yield Program("two_heads", lambda x: (F.relu(x).mean(-1), x.sum(1)), (LINE,))
    yield Program("volumes", lambda x: F.relu(x).sum([2, 3, 4]), (BOX,))


def programs() -> Iterator[Program]:
    yield from _shapes()
    yield from _matrices()
    yield from _attention()
    yield from _recurrence()
    yield from _types()
    yield from _blocks()
