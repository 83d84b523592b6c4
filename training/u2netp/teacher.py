"""Computes the reference network's seven maps of every training picture, once, as soft targets.

    python -m training.u2netp.teacher --data ../shared/data/sod_train \
        --reference ../shared/weights/u2netp_reference.onnx --out runs/u2netp/soft.npz

Validation pictures are left at zero.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from training.u2netp.data import SIDE, SOFT_SIDE, Pixels, normalise, read_folder, write_soft


def reference_maps(session: Any, picture: Pixels) -> NDArray[np.float32]:
    """Seven maps 7×320×320 in 0…1, the fused one first."""
    return np.concatenate(session.run(None, {"input": normalise(picture)[None]}), 1)[0]


def main() -> None:
    """Command line; see the module's docstring."""
    import onnxruntime

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    corpus = read_folder(arguments.data)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    # Spinning threads would take the processor from a training run beside this one.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        str(arguments.reference), options, providers=["CPUExecutionProvider"]
    )
    fused = np.zeros((len(corpus.names), SIDE, SIDE), np.uint8)
    sides = np.zeros((len(corpus.names), 6, SOFT_SIDE, SOFT_SIDE), np.uint8)
    started = time.perf_counter()
    for done, row in enumerate(corpus.training, start=1):
        maps = np.rint(reference_maps(session, corpus.pictures[row]) * 255).astype(np.uint8)
        fused[row] = maps[0]
        for side in range(6):
            sides[row, side] = cv2.resize(
                maps[side + 1], (SOFT_SIDE, SOFT_SIDE), interpolation=cv2.INTER_AREA
            )
        if done % 100 == 0:
            print(f"{done} pictures, {time.perf_counter() - started:.0f} s", flush=True)
    write_soft(arguments.out, corpus.names, fused, sides)
    print(f"{arguments.out}: {len(corpus.training)} pictures")


if __name__ == "__main__":
    main()
