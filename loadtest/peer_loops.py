"""Bare loops in their own processes: the whole task with only a framework, without a server.

A picture is decoded, resized and run, and its mask resized and written as PNG. A text is tokenised
and run, and its scores sorted. Each loop is written like a typical user's: no batching, no padding,
and the framework's defaults except for the number of threads. `onnxruntime as served` disables the
fusion that the server disables, to measure the server alone.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from peer_programs.matting import Matting, Run, open_onnx
from tokenizers import Tokenizer

from paddlepool.contracts.tensors import Tensors

Work = Callable[[bytes], bytes]


def open_loop(opening: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
    """Target of a child: `framework`, `task`, and the file `model` beside its `tokenizer.json`.

    Its handler works for `seconds`, at least once, on the array `body`. It returns the number of
    runs, the seconds that they took and the last result.
    """
    run, names = FRAMEWORKS[opening["framework"]](opening["model"])
    if opening["task"] == "picture":
        work: Work = Matting(run, names).process
    else:
        tokenizer = Path(opening["model"]).with_name("tokenizer.json")
        work = _labels(run, names, Tokenizer.from_file(str(tokenizer)))

    def loop(
        meta: Mapping[str, Any], arrays: Tensors, _descriptors: Sequence[int]
    ) -> tuple[Mapping[str, Any], Tensors]:
        body = bytes(arrays["body"])
        began = now = time.perf_counter()
        runs, result = 0, b""
        while not runs or now - began < meta["seconds"]:
            result = work(body)
            runs, now = runs + 1, time.perf_counter()
        return {"runs": runs, "seconds": now - began}, {"result": np.frombuffer(result, np.uint8)}

    return {}, loop


def _openvino(model: str) -> tuple[Run, list[str]]:
    import openvino

    core = openvino.Core()
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": 1,
        # By default, the threads of several processes would be pinned to the same first cores.
        "ENABLE_CPU_PINNING": False,
        # The default is bfloat16 if the processor has it: a different computation.
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = core.compile_model(core.read_model(model), "CPU", settings)
    request = compiled.create_infer_request()

    def run(feed: Mapping[str, Any]) -> Any:
        request.infer(dict(feed))
        return request.get_output_tensor(0).data

    return run, [port.get_any_name() for port in compiled.inputs]


FRAMEWORKS: dict[str, Callable[[str], tuple[Run, list[str]]]] = {
    "onnxruntime": open_onnx,
    # Like app/paddlepool/engine/backends/onnx.py.
    "onnxruntime as served": partial(open_onnx, disabled=("SkipLayerNormFusion",)),
    "openvino": _openvino,
}


def _labels(run: Run, names: Sequence[str], tokenizer: Tokenizer) -> Work:
    def work(body: bytes) -> bytes:
        ids = tokenizer.encode(body.decode()).ids
        feeds = {"input_ids": ids, "attention_mask": [1] * len(ids)}
        logits = run({name: np.array([feeds[name]], np.int64) for name in names})[0]
        scores = np.exp(logits - logits.max())
        scores /= scores.sum()
        order = np.argsort(-scores)
        return repr([(int(index), float(scores[index])) for index in order]).encode()

    return work
