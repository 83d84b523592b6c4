"""Programs that engines answer differently, and no one is wrong: docs/engines.md lists them."""

from collections.abc import Callable, Iterator
from typing import Any

import paddle
import paddle.nn.functional as F

from tests.engine.backends.sweep.program import ROW, Input, Program


def _of(values: list[float], call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Apply to these values in each row, whatever the input holds."""
    return lambda x: call(x[:, : len(values)] * 0 + paddle.to_tensor(values))


def programs() -> Iterator[Program]:
    calls: dict[str, Callable[[Any], Any]] = {
        "log_softmax_low": _of([0.0, -100.0], F.log_softmax),
        "log_of_sigmoid": _of([-2.0, -20.0], lambda x: paddle.log(F.sigmoid(x))),
        "relu_of_nan": _of([-1.0, 1.0], lambda x: F.relu(paddle.sqrt(x))),
        "clip_of_nan": _of([-1.0, 1.0], lambda x: paddle.clip(paddle.sqrt(x), -2.0, 3.0)),
        "cast_beyond": _of([256.0, -1.5], lambda x: x.astype("uint8")),
        "ties": _of([1.0, 0.0, 1.0, 1.0, 0.0, 1.0], lambda x: paddle.topk(x, 3)[1]),
    }
    for name, call in calls.items():
        yield Program(f"differs_{name}", call, (ROW,))
    yield Program(
        "differs_window_of_padding",
        lambda x: paddle.shape(F.max_pool2d(x, 2, 3, 1, ceil_mode=True)),
        (Input("n 1 5 5"),),
    )
    # Four normalised values are at most the root of 3.
    yield Program(
        "differs_group_norm_of_large",
        _of(
            [9999.0, 10000.0, 10001.0, 10003.0],
            lambda x: F.group_norm(x.reshape([-1, 1, 2, 2]), 1).flatten(1).abs() > 2,
        ),
        (ROW,),
    )
