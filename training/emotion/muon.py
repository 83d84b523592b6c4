"""Muon: steps of equal size in every direction of a weight matrix, in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_ROUNDS = 5
_QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonal(matrices: Tensor) -> Tensor:
    """Return ``[n, rows, columns]`` with all singular values near 1 (Newton-Schulz rounds)."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = _QUINTIC
    for _ in range(_ROUNDS):
        square = x @ x.mT
        x = torch.baddbmm(x, b * square + c * (square @ square), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Optimiser of the weight matrices of an encoder's layers; everything else is AdamW's.

    torch.optim.Muon does the same one matrix at a time in bfloat16, which a processor without
    bfloat16 computes five times slower. Its steps have the size of AdamW's, so one rate serves.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], rate: float, decay: float) -> None:
        super().__init__(parameters, {"lr": rate, "decay": decay, "momentum": 0.95})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Move every matrix by its orthogonalised momentum."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in by_shape.items():
                wanted = []
                for parameter in parameters:
                    state = self.state[parameter]
                    if not state:
                        state["momentum"] = torch.zeros_like(parameter)
                    past = state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                    wanted.append(parameter.grad.lerp(past, group["momentum"]))
                steps = orthogonal(torch.stack(wanted))
                size = 0.2 * max(shape) ** 0.5
                for parameter, change in zip(parameters, steps, strict=True):
                    parameter.mul_(1 - group["lr"] * group["decay"])
                    parameter.add_(change, alpha=-group["lr"] * size)
