"""U2-Netp in one thread, JPEG in, mask PNG out; for the peers' programs and the bare loops."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cv2
import numpy as np

MEAN, STD, SIDE = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 320

Run = Callable[[Mapping[str, Any]], Any]
"""Run a network on its named inputs; returns its first output."""


def open_onnx(model: str, *, disabled: Sequence[str] = ()) -> tuple[Run, list[str]]:
    """Open a file with ONNX Runtime; returns the names of the inputs, too."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
    )
    return lambda feed: session.run(None, feed)[0], [tensor.name for tensor in session.get_inputs()]


class Matting:
    def __init__(self, run: Run | None = None, names: Sequence[str] = ()) -> None:
        cv2.setNumThreads(1)
        self.thread = ThreadPoolExecutor(1)
        if run is None:
            run, names = open_onnx(os.environ["PEER_MODEL"])
        self.run = run
        [self.name] = names

    def read(self, body: bytes) -> Any:
        return np.asarray(cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR))[..., ::-1]

    def mask(self, pixels: Any) -> Any:
        height, width = pixels.shape[:2]
        small = cv2.resize(pixels, (SIDE, SIDE)).astype(np.float32)
        small = (small / small.max() - np.asarray(MEAN, np.float32)) / np.asarray(STD, np.float32)
        mask = self.run({self.name: np.ascontiguousarray(small.transpose(2, 0, 1)[None])})[0, 0]
        mask = (mask - mask.min()) / (mask.max() - mask.min())
        return cv2.resize((mask * 255).astype(np.uint8), (width, height))

    def write(self, mask: Any) -> bytes:
        return bytes(cv2.imencode(".png", mask)[1])

    def process(self, body: bytes) -> bytes:
        return self.write(self.mask(self.read(body)))

    async def process_in_thread(self, body: bytes) -> bytes:
        """Call `process` in a thread, so that the caller's event loop goes on."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, self.process, body)
