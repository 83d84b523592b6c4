"""Quantises to int8 with calibration data: ranges of values, and layers that must stay float.

NNCF measures the ranges; it needs the extra `quantize`.
"""

import hashlib
import logging
import random
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import onnx

from app.contracts.errors import ConfigError
from app.contracts.tensors import Tensors
from app.engine.backends.openvino import imported_openvino
from app.making.programs.onnx_graph import Graph
from app.making.programs.qdq import Ranges, quantised, read_ranges

PRESET = "mixed"
SEED = 20
TOOLS = ("nncf", "onnx", "openvino")
"""Packages whose versions a manifest records."""


def chosen(files: Sequence[Path], count: int) -> list[Path]:
    """`count` of the files, or all if there are fewer; the choice is deterministic."""
    ordered = sorted(files)
    return sorted(random.Random(SEED).sample(ordered, min(count, len(ordered))))  # noqa: S311


def digest_of(files: Sequence[Path]) -> str:
    """One sha256 for a set of files."""
    digests = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def measure_ranges(
    model: onnx.ModelProto, feeds: Sequence[Tensors], *, float_layers: Sequence[str] = ()
) -> Ranges:
    """The ranges of all that can be quantised except `float_layers`; `model` is unchanged.

    Bias correction is off: on U²-Netp it changes the masks more than quantising does.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its dependencies warn about each other
            imported_openvino()
            import nncf
    except ImportError as error:
        raise ConfigError(
            "quantising with calibration data needs the package nncf (extra quantize)"
        ) from error
    logging.getLogger("nncf").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = nncf.quantize(
            model,
            nncf.Dataset(list(feeds)),
            preset=nncf.QuantizationPreset(PRESET),
            ignored_scope=nncf.IgnoredScope(names=list(float_layers)) if float_layers else None,
            subset_size=len(feeds),
            advanced_parameters=nncf.AdvancedQuantizationParameters(disable_bias_correction=True),
        )
    return read_ranges(model, found)


def layers_of(model: onnx.ModelProto) -> list[str]:
    return [layer.name for layer, _ in Graph(model).layers()]


Loss = Callable[[onnx.ModelProto], float]
Show = Callable[[str, float], None]

SHARE = 0.1
"""The layers of a stage are measured only if the stage, alone in int8, loses more than this share
of the budget or of the worst stage's loss, whichever is larger. The same limit selects the layers
that may become float."""


def restricted(ranges: Ranges, floats: Collection[str]) -> Ranges:
    """The ranges with the layers `floats` in float as well; these read their inputs unquantised."""
    activations = []
    for each in ranges.activations:
        readers = tuple(name for name in each.readers if name not in floats)
        if readers:
            activations.append(replace(each, readers=readers))
    merged = dict.fromkeys((*ranges.float_layers, *floats))
    return Ranges(activations=tuple(activations), float_layers=tuple(merged))


class FloatLayers:
    """Finds the layers that must stay float. `loss` measures a program, `show` reports its loss.

    `tried` counts the programs that were measured.
    """

    def __init__(self, model: onnx.ModelProto, ranges: Ranges, *, loss: Loss, show: Show) -> None:
        self._content = model.SerializeToString()
        self._ranges = ranges
        self._loss = loss
        self._show = show
        self._layers = [each for each in layers_of(model) if each not in ranges.float_layers]
        self.tried = 0

    def find(self, budget: float) -> Ranges:
        """Find a small set of float layers that brings the loss within the budget, if there is one.

        If the program with every layer in int8 loses too much, measure the loss with only one stage
        in int8, for each stage (layers whose names have the same first part). Then measure the loss
        with only one layer in int8, for each layer of the stages that lose most. Then make the
        layers float one after another, the worst first, until the loss is within the budget.
        """
        floats: list[str] = []
        loss = self._measured("everything", floats)
        worst = self._worst(budget) if loss > budget else []
        while worst and loss > budget:
            floats.append(worst.pop(0))
            loss = self._measured(f"float: {', '.join(floats)}", floats)
        return restricted(self._ranges, floats)

    def _worst(self, budget: float) -> list[str]:
        """The layers that lose most when only that layer is in int8, the worst first; see SHARE."""
        stages: dict[str, list[str]] = {}
        for layer in self._layers:
            stages.setdefault(layer.partition(".")[0], []).append(layer)
        own: dict[str, float] = {}
        by_stage = {
            stage: self._loss_with_int8(layers, what=f"only {stage}")
            for stage, layers in stages.items()
        }
        least = SHARE * max(budget, *by_stage.values())
        for stage, loss in by_stage.items():
            layers = stages[stage]
            if loss <= least:
                continue
            for layer in layers:
                own[layer] = (
                    loss
                    if len(layers) == 1
                    else self._loss_with_int8([layer], what=f"only {layer}")
                )
        found = [layer for layer, loss in own.items() if loss > least]
        return sorted(found, key=own.__getitem__, reverse=True)

    def _loss_with_int8(self, layers: Sequence[str], *, what: str) -> float:
        return self._measured(what, [each for each in self._layers if each not in layers])

    def _measured(self, what: str, floats: Sequence[str]) -> float:
        model = onnx.ModelProto.FromString(self._content)
        loss = self._loss(quantised(model, restricted(self._ranges, floats)))
        self.tried += 1
        self._show(what, loss)
        return loss
