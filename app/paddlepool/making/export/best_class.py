"""Reduces the scores of a recogniser of text to the best class of each step, inside its program.

PP-OCRv5 has 18,385 classes: a step has 73,540 bytes of scores, but its best class and the score of
that class have 8 bytes. The weights stay as they are.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paddlepool.contracts.errors import ExportError
from paddlepool.contracts.sentences import sentence
from paddlepool.engine.process.child import Child, ChildDied
from paddlepool.engine.process.environment import Limits

OPEN_SECONDS = 300.0
SCORES_RANK = 3
"""Scores have the axes (lines, steps, classes)."""
MOST_PARTS = 256
"""Maximum number of parts into which the classes of a step are divided."""


def reduce_to_best_class(directory: Path, program: str) -> None:
    """Change a program (.json) whose only output is scores of classes, in a child process.

    An output of three axes, if it is the only one, is taken for scores (lines, steps, classes). Two
    outputs (lines, steps) replace it: the best class as int32, and its score. Other programs are
    left alone. Raises ExportError if Paddle cannot load or change the program.
    """
    environment = {"GLOG_minloglevel": "2", "PYTHONWARNINGS": "ignore"}
    try:
        child = Child(
            "paddlepool.making.export.best_class:rewrite",
            {"directory": str(directory), "program": program},
            limits=Limits(environment=environment),
            start_timeout=OPEN_SECONDS,
        )
    except ChildDied as error:
        raise ExportError(f"{program}: the process that changed it ended ({error})") from error
    child.close()


def rewrite(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Callable[..., Any]]:
    """Change the program as reduce_to_best_class() says; the returned handler does nothing.

    Raises ExportError if Paddle cannot load or change the program.
    """
    import paddle

    paddle.disable_signal_handler()
    paddle.enable_static()
    path = Path(opening["directory"]) / opening["program"]
    executor = paddle.static.Executor(paddle.CPUPlace())
    try:
        program, _, outputs = paddle.static.load_inference_model(
            str(path.with_suffix("")), executor
        )
        inputs = [op.result(0) for op in program.global_block().ops if op.name() == "pd_op.data"]
        if [len(output.shape) for output in outputs] == [SCORES_RANK]:
            with paddle.static.program_guard(program), TemporaryDirectory() as scratch:
                best = _best(outputs[0])
                target = Path(scratch) / path.stem
                paddle.static.save_inference_model(
                    str(target), inputs, best, executor, program=program
                )
                for saved in Path(scratch).iterdir():
                    shutil.copyfile(saved, path.parent / saved.name)
    except Exception as error:
        raise ExportError(f"Paddle cannot change {path.stem}: {sentence(str(error))}") from error
    return {}, lambda *_: ({}, {})


def parts_of(count: int) -> int:
    """Return the number of equal parts in which the best of `count` classes is found fastest.

    It divides `count` and is at most MOST_PARTS.
    """
    divisors = [parts for parts in range(1, MOST_PARTS + 1) if count % parts == 0]
    return min(divisors, key=lambda parts: parts + count // parts)


def _best(scores: Any) -> list[Any]:
    """Add the operators that return the best class and its score, each (lines, steps).

    TopK looks at one class after the other, in OpenVINO as in ONNX Runtime, but a maximum at many
    at once. So the maxima of equal parts are computed first, then the best class of the best part.
    """
    import paddle

    parts = parts_of(scores.shape[-1])
    size = scores.shape[-1] // parts

    def times(value: Any, factor: int) -> Any:
        # Not value * factor: paddle2onnx would convert that to a product of float32.
        return paddle.multiply(value, paddle.full([1], factor, "int64"))

    rows = paddle.reshape(scores, [0, 0, parts, size])
    best, part = paddle.topk(rows.max(axis=-1), 1, axis=-1)
    place = paddle.reshape(part, [-1])
    first = times(paddle.arange(paddle.shape(place)[0], dtype="int64"), parts)
    row = paddle.gather(paddle.reshape(rows, [-1, size]), first + place)
    _, within = paddle.topk(row, 1, axis=-1)
    classes = times(place, size) + paddle.reshape(within, [-1])
    classes = paddle.reshape(classes, paddle.shape(part)[:2])
    return [classes.astype("int32"), best.squeeze(-1)]
