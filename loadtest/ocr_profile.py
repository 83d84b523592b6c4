"""Print where the time of a recogniser of text goes in OpenVINO, by kind of operator.

    .venv/bin/python loadtest/ocr_profile.py REPOSITORY/pp-ocrv5-mobile-rec/1

One thread runs lines of noise in bfloat16, the program itself and its program int8 if it has one.
"""

import argparse
import time
from collections import Counter
from pathlib import Path

import numpy as np
import openvino
from pages import markdown_table

from paddlepool.engine.backends.handler import onnx_bytes
from paddlepool.models.repository.manifest import read_manifest

RUNS = 30
HEADS = ("program", "operators", "kernel", "number", "ms a line", "share")
SMALLEST = 0.01
"""Kinds with a smaller share are summed up."""


def profile(name: str, program: bytes, *, lines: int, width: int) -> list[list[str]]:
    """Return the rows of one program; the last one is the time of a run without a profile."""
    model = openvino.Core().read_model(program)
    options = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": 1}
    plain, profiled = (
        openvino.compile_model(
            model, "CPU", options | {"PERF_COUNT": counted}
        ).create_infer_request()
        for counted in (False, True)
    )
    noise = np.random.default_rng(1).uniform(-1, 1, (lines, 3, 48, width)).astype(np.float32)
    times, numbers, whole = Counter[tuple[str, str]](), Counter[tuple[str, str]](), []
    for run in range(-RUNS // 3, RUNS):
        began = time.process_time()
        plain.infer([noise])
        seconds = time.process_time() - began
        profiled.infer([noise])
        if run < 0:
            continue
        whole.append(seconds)
        for node in profiled.get_profiling_info():
            milliseconds = 1000 * node.real_time.total_seconds() / RUNS / lines
            times[node.node_type, node.exec_type] += milliseconds
            numbers[node.node_type, node.exec_type] += milliseconds > 0
    total = times.total()
    large = [kind for kind, value in times.most_common() if value >= SMALLEST * total]
    rows = [
        [name, *kind, str(round(numbers[kind] / RUNS)), f"{times[kind]:.2f}",
         f"{times[kind] / total:.0%}"]
        for kind in large
    ]  # fmt: skip
    rest = total - sum(times[kind] for kind in large)
    rows.append([name, "others", "", "", f"{rest:.2f}", f"{rest / total:.0%}"])
    rows.append([name, "a run", "", "", f"{1000 * float(np.median(whole)) / lines:.2f}", ""])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("version", type=Path)
    parser.add_argument("--lines", type=int, default=4)
    parser.add_argument("--width", type=int, default=320)
    arguments = parser.parse_args()
    opening = {"directory": str(arguments.version), "program": "inference.json"}
    programs = {"bfloat16": onnx_bytes(opening | {"params": "inference.pdiparams"})}
    for program in read_manifest(arguments.version).programs:
        programs[program.name] = (arguments.version / program.program).read_bytes()
    size = {"lines": arguments.lines, "width": arguments.width}
    rows = [row for name, program in programs.items() for row in profile(name, program, **size)]
    print(markdown_table(HEADS, rows))


if __name__ == "__main__":
    main()
