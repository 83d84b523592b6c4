"""LitServe with U2-Netp by ONNX Runtime, JPEG in, mask PNG out, a worker of one thread a core.

https://lightning.ai/docs/litserve/api-reference/litapi
"""

import os

import cv2
import litserve as ls
import numpy as np
import onnxruntime
from fastapi import Request, Response

MEAN, STD, SIDE = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 320


class Masks(ls.LitAPI):
    def setup(self, device):  # noqa: ARG002 - what it calls it with
        cv2.setNumThreads(1)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            os.environ["PEER_MODEL"], options, providers=["CPUExecutionProvider"]
        )
        self.name = self.session.get_inputs()[0].name

    def decode_request(self, request: Request):
        body = np.frombuffer(request["image"].file.read(), np.uint8)
        return cv2.imdecode(body, cv2.IMREAD_COLOR)[..., ::-1]

    def predict(self, pixels):
        height, width = pixels.shape[:2]
        small = cv2.resize(pixels, (SIDE, SIDE)).astype(np.float32)
        small = (small / small.max() - np.float32(MEAN)) / np.float32(STD)
        tensor = np.ascontiguousarray(small.transpose(2, 0, 1)[None])
        mask = self.session.run(None, {self.name: tensor})[0][0, 0]
        mask = (mask - mask.min()) / (mask.max() - mask.min())
        return cv2.resize((mask * 255).astype(np.uint8), (width, height))

    def encode_response(self, mask):
        return Response(cv2.imencode(".png", mask)[1].tobytes(), media_type="image/png")


if __name__ == "__main__":
    server = ls.LitServer(
        Masks(), accelerator="cpu", workers_per_device=int(os.environ["PEER_WORKERS"])
    )
    server.run(
        host="127.0.0.1",
        port=int(os.environ["PEER_PORT"]),
        generate_client_file=False,
        log_level="warning",
    )
