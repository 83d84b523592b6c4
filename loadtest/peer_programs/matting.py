"""U2-Netp with ONNX Runtime in one thread, JPEG in, mask PNG out; called by each peer's program."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import onnxruntime

MEAN, STD, SIDE = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 320


class Matting:
    def __init__(self):
        cv2.setNumThreads(1)
        self.thread = ThreadPoolExecutor(1)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            os.environ["PEER_MODEL"], options, providers=["CPUExecutionProvider"]
        )
        self.name = self.session.get_inputs()[0].name

    def read(self, body):
        return cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]

    def mask(self, pixels):
        height, width = pixels.shape[:2]
        small = cv2.resize(pixels, (SIDE, SIDE)).astype(np.float32)
        small = (small / small.max() - np.float32(MEAN)) / np.float32(STD)
        tensor = np.ascontiguousarray(small.transpose(2, 0, 1)[None])
        mask = self.session.run(None, {self.name: tensor})[0][0, 0]
        mask = (mask - mask.min()) / (mask.max() - mask.min())
        return cv2.resize((mask * 255).astype(np.uint8), (width, height))

    def write(self, mask):
        return cv2.imencode(".png", mask)[1].tobytes()

    def answer(self, body):
        return self.write(self.mask(self.read(body)))

    async def answer_aside(self, body):
        """The same in a thread, so that the caller's event loop goes on."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, self.answer, body)
