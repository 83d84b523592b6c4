"""Triton Inference Server with a Python model, bound by pytriton: one instance per core.

https://triton-inference-server.github.io/pytriton/latest/binding_models/
"""

import os

import numpy as np
from matting import Matting
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def instance():
    matting = Matting()

    @batch
    def masks(image):
        return [np.array([[matting.process(body)] for [body] in image])]

    return masks


if __name__ == "__main__":
    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=int(os.environ["PEER_PORT"]),
        allow_grpc=False,
        allow_metrics=False,
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="u2netp",
            infer_func=[instance() for _ in range(int(os.environ["PEER_WORKERS"]))],
            inputs=[Tensor(name="image", dtype=bytes, shape=(1,))],
            outputs=[Tensor(name="mask", dtype=bytes, shape=(1,))],
            config=ModelConfig(max_batch_size=1),
        )
        triton.serve()
