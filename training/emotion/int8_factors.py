"""The factors that smooth the classifier's activations for int8, measured on posts.

    python -m training.emotion.int8_factors --data ../shared/data --version 3

Needs the package `onnx`. Measures the largest value of each channel on 300 posts of the training
splits, then what the int8 program loses on both eval splits, and writes
app/making/programs/ranges/emotion.json. `paddlepool derive emotion` makes the program from it.
"""

from __future__ import annotations

import argparse
import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from app.contracts.tensors import Tensors
from app.making.export.publish import versions_of
from app.making.programs.derive import (
    INT8,
    SETTINGS,
    TOOL,
    TOOLS,
    dynamic,
    folded,
    named_graph,
    readers,
)
from app.making.programs.onnx_graph import Graph
from app.making.programs.qdq import DIRECTORY, PARSER, ShippedRanges
from app.models.repository.layout import ModelRepository
from app.models.repository.manifest import Calibration, Derivation, MeasuredLoss
from app.tasks.sentiment.pipeline import open_tokenizer, read_parameters, tensors_of, tokenise
from training.emotion.corpora import smp

SEED = 20
NORMALISED, ACTIVATED = 0.5, 0.7
"""SmoothQuant's alpha for the outputs of normalisations and of the feed-forward activation: the
share of the difference between channels that moves into the weights. Both were chosen on training
posts."""
FLOAT = ("p2o.pd_op.cast.8", "p2o.pd_op.cast.24", "p2o.pd_op.cast.64")
"""The value projections of the first and the second layer, and the feed-forward output of the last.
Of all products, quantising these changes the logits of training posts most."""

Floats = NDArray[np.float32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with smp2020_ewect")
    parser.add_argument("--repository", type=Path, default=Path("model_repo"))
    parser.add_argument("--version", type=int, required=True)
    parser.add_argument("--samples", type=int, default=300)
    args = parser.parse_args()
    files = ModelRepository(args.repository.resolve()).read("emotion", args.version)
    parameters = read_parameters(files.info())
    lengths = parameters.lengths()
    tokenizer = open_tokenizer(files.info(), parameters)

    def feeds(texts: Sequence[str]) -> list[Tensors]:
        return [
            tensors_of([each], pad_id=parameters.pad_id)
            for each in tokenise(texts, tokenizer, lengths=lengths)
        ]

    def posts(*splits: str) -> list[str]:
        return [post.text for split in splits for post in smp(args.data, split)]

    chosen = random.Random(SEED).sample(posts("usual_train", "virus_train"), args.samples)
    measured = ShippedRanges(
        weights_sha256=str(files.manifest.weights["sha256"]),
        derivation=Derivation(
            tool=TOOL,
            versions=versions_of(TOOLS),
            settings=SETTINGS
            | {"smoothing_normalised": NORMALISED, "smoothing_activated": ACTIVATED},
            float_layers=FLOAT,
        ),
        calibration=Calibration(
            data="smp2020_ewect, training splits",
            count=len(chosen),
            sha256=hashlib.sha256("\n".join(chosen).encode()).hexdigest(),
        ),
        quality=(),
        exponents=exponents(folded(files), feeds(chosen)),
    )
    small = dynamic(files, measured).content
    reference = named_graph(files).SerializeToString()
    quality = tuple(
        loss(reference, small, feeds(posts(split)), split) for split in ("usual_eval", "virus_eval")
    )
    target = DIRECTORY / "emotion.json"
    written = PARSER.dump_json(replace(measured, quality=quality), exclude_none=True)
    target.write_bytes(written + b"\n")
    print(f"{target}, the program {INT8}: {[each.figures for each in quality]}")


def exponents(graph: Graph, samples: Sequence[Tensors]) -> dict[str, tuple[float, ...]]:
    """Powers of two for each channel of the values that are smoothed."""
    makers = {node.output[0]: node.op_type for node in graph.nodes}
    kinds = {"LayerNormalization": NORMALISED, "Mul": ACTIVATED}
    alphas = {
        value: kinds[kind]
        for value, kind in makers.items()
        if kind in kinds and readers(graph, value)
    }
    weights = {
        value: np.max(
            [np.abs(graph.constants[node.input[1]]).max(axis=1) for node in readers(graph, value)],
            axis=0,
        )
        for value in alphas
    }
    largest = ranges(graph, list(alphas), samples)
    found = {}
    for value, alpha in alphas.items():
        factors = np.log2(np.maximum(largest[value], 1e-5)) * alpha
        factors -= np.log2(np.maximum(weights[value], 1e-5)) * (1 - alpha)
        found[value] = tuple(round(float(power), 2) for power in factors - factors.mean())
    return found


def ranges(graph: Graph, values: Sequence[str], samples: Sequence[Tensors]) -> dict[str, Floats]:
    """The largest absolute value of each channel."""
    model = graph.model()
    del model.graph.output[:]
    model.graph.output.extend(
        helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, None) for value in values
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found: dict[str, Floats] = {}
    for sample in samples:
        for value, array in zip(values, session.run(None, sample), strict=True):
            peaks = np.abs(array.reshape(-1, array.shape[-1])).max(axis=0)
            found[value] = np.maximum(found.get(value, 0), peaks)
    return found


def loss(reference: bytes, small: bytes, samples: Sequence[Tensors], split: str) -> MeasuredLoss:
    """What the int8 program changes, one post a run."""
    sessions = [onnxruntime.InferenceSession(each) for each in (reference, small)]
    before, after = (
        np.concatenate([session.run(None, sample)[0] for sample in samples]) for session in sessions
    )
    same = (before.argmax(axis=1) == after.argmax(axis=1)).mean()
    return MeasuredLoss(
        data=f"smp2020_ewect, {split}",
        count=len(samples),
        figures={
            "labels the same": round(float(same), 5),
            "mean difference of logits": round(float(np.abs(before - after).mean()), 5),
        },
    )


if __name__ == "__main__":
    main()
