"""U²-Netp against the reference ONNX, and each of its forms against the plain one."""

import numpy as np
import paddle
import pytest
from numpy.typing import NDArray
from paddle import nn
from paddle.nn import functional

from app.making.export.weights import Arrays, fold_batch_norm, mask_state
from app.models.networks import build
from app.models.networks.u2net import U2NETP, ConvBlock, U2NetMask, upsample_like

pytestmark = pytest.mark.paddle
LIMIT = 1e-4


class U2Net(U2NetMask):
    """Upstream's form: the fused mask `d0` and six side outputs, optionally with batch norm."""

    def __init__(self, *, batch_norm: bool = False) -> None:
        super().__init__(U2NETP)
        del self.place, self.bias
        for index in range(1, 7):
            width = self._sub_layers.pop(f"taps{index}").weight.shape[1]
            self.add_sublayer(f"side{index}", nn.Conv2D(width, 1, 3, padding=1))
        self.outconv = nn.Conv2D(6, 1, 1)
        for block in self.sublayers() if batch_norm else ():
            if isinstance(block, ConvBlock):
                norm = block.bn_s1 = nn.BatchNorm2D(block.conv_s1.weight.shape[0])
                block.conv_s1.register_forward_post_hook(
                    lambda _layer, _inputs, output, norm=norm: norm(output)
                )

    def forward(self, image: paddle.Tensor) -> tuple[paddle.Tensor, ...]:
        logits: list[paddle.Tensor] = []
        for index, feature in enumerate(self.features(image)):
            side = self._sub_layers[f"side{index + 1}"](feature)
            logits.append(side if index == 0 else upsample_like(side, logits[0]))
        fused = self.outconv(paddle.concat(logits, axis=1))
        return tuple(functional.sigmoid(logit) for logit in (fused, *logits))


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
    network = U2Net(batch_norm=True)
    for name, value in network.state_dict().items():
        if ".bn_s1." in name:
            lower = 0.5 if name.endswith(("_variance", "weight")) else -0.5
            value.set_value(random.uniform(lower, lower + 1, value.shape).astype(np.float32))
    return network


def test_folding_batch_norm(unfolded: U2Net) -> None:
    image = np.random.default_rng(5).normal(size=(2, 3, 96, 96)).astype(np.float32)
    folded = load(U2Net(), fold_batch_norm(upstream_arrays(unfolded)))
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
