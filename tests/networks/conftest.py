"""Where the reference weights are, and one exported U²-Netp that several tests run."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.quiet_paddle import paddle  # isort: skip - before anything that imports Paddle


REFERENCE = Path(__file__).parents[3] / "shared" / "weights"
FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(scope="session")
def reference_weights() -> Path:
    """The folder with u2netp_reference.{npz,onnx}; skips, saying so, where it is absent."""
    if not (REFERENCE / "u2netp_reference.onnx").exists():
        pytest.skip(f"no reference weights at {REFERENCE}: parity with the reference NOT checked")
    return REFERENCE


@pytest.fixture(scope="session")
def picture() -> NDArray[np.float32]:
    """One normalised picture [1,3,320,320]: a bright disc on a dark, grainy slope."""
    ramp = np.linspace(-1.0, 1.0, 320)
    disc = np.where(ramp[:, None] ** 2 + ramp[None, :] ** 2 < 0.3, 2.0, -1.5)
    planes = np.stack([disc, disc * 0.5 + ramp * 0.5, disc * 0.25 - ramp[:, None] * 0.5])
    grain = np.random.default_rng(4).normal(scale=0.1, size=planes.shape)
    return (planes + grain)[None].astype(np.float32)


Open = Callable[..., Callable[..., list[NDArray[np.float32]]]]


@pytest.fixture(scope="session")
def open_program() -> Open:
    """Opens a saved program as a function of its inputs: `open_program(directory, onednn=True)`.

    `onednn=None` leaves Paddle's own default.
    """

    def open_it(
        directory: Path, *, onednn: bool | None
    ) -> Callable[..., list[NDArray[np.float32]]]:
        config = paddle.inference.Config(
            str(directory / "inference.json"), str(directory / "inference.pdiparams")
        )
        config.disable_gpu()
        config.disable_glog_info()
        config.set_cpu_math_library_num_threads(1)
        if onednn is not None:
            config.enable_mkldnn() if onednn else config.disable_mkldnn()
        predictor = paddle.inference.create_predictor(config)

        def run(*arrays: NDArray[np.generic]) -> list[NDArray[np.float32]]:
            for name, array in zip(predictor.get_input_names(), arrays, strict=True):
                handle = predictor.get_input_handle(name)
                handle.reshape(array.shape)
                handle.copy_from_cpu(array)
            predictor.run()
            names = predictor.get_output_names()
            return [predictor.get_output_handle(name).copy_to_cpu() for name in names]

        return run

    return open_it
