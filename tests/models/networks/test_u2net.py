"""U²-Netp against the reference ONNX, and each of its forms against the plain one."""

import numpy as np
import paddle
import pytest
from numpy.typing import NDArray

from app.making.export.weights import Arrays, fold_batch_norm, mask_state
from app.models.networks import build
from app.models.networks.u2net import U2NETP, U2Net

pytestmark = pytest.mark.paddle
LIMIT = 1e-4


def forward(network: paddle.nn.Layer, image: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    network.eval()
    with paddle.no_grad():
        outputs = network(paddle.to_tensor(image))
    return [o.numpy() for o in (outputs if isinstance(outputs, tuple) else (outputs,))]


def load(network: paddle.nn.Layer, state: Arrays) -> paddle.nn.Layer:
    network.set_state_dict({name: paddle.to_tensor(value) for name, value in state.items()})
    return network


def upstream_arrays(network: U2Net) -> Arrays:
    """The network's state in upstream names, batch norm statistics included."""
    renamed = {"._mean": ".running_mean", "._variance": ".running_var"}
    arrays = {}
    for name, value in network.state_dict().items():
        for ours, theirs in renamed.items():
            name = name.replace(ours, theirs)
        arrays[name] = value.numpy()
    return arrays


@pytest.fixture(scope="module")
def unfolded() -> U2Net:
    """U²-Netp with batch norm whose statistics, gains and shifts are all random."""
    paddle.seed(11)
    random = np.random.default_rng(11)
    network = U2Net(U2NETP, batch_norm=True)
    for name, value in network.state_dict().items():
        if ".bn_s1." in name:
            lower = 0.5 if name.endswith(("_variance", "weight")) else -0.5
            value.set_value(random.uniform(lower, lower + 1, value.shape).astype(np.float32))
    return network


def test_folding_batch_norm(unfolded: U2Net) -> None:
    image = np.random.default_rng(5).normal(size=(2, 3, 96, 96)).astype(np.float32)
    folded = load(U2Net(U2NETP), fold_batch_norm(upstream_arrays(unfolded)))
    for expected, actual in zip(forward(unfolded, image), forward(folded, image), strict=True):
        assert np.ptp(expected) > 1e-3, "a flat mask would prove little"
        assert np.abs(expected - actual).max() <= LIMIT


def test_served_form(unfolded: U2Net) -> None:
    """The rearranged head gives the plain network's d0, also for a batch and odd sizes."""
    image = np.random.default_rng(6).normal(size=(2, 3, 65, 95)).astype(np.float32)
    state = mask_state(fold_batch_norm(upstream_arrays(unfolded)))
    (actual,) = forward(load(build("u2netp", {}), state), image)
    assert actual.shape == (2, 1, 65, 95)
    assert np.abs(forward(unfolded, image)[0] - actual).max() <= LIMIT
