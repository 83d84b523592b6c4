"""A network under pre-training with its optimisers and counts, saved as a checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import BertConfig

from training.emotion.muon import Muon
from training.emotion.network import Pretraining, Wanted, halved

_WEIGHTS = (1.0, 5.0, 0.5, 0.5, 1.0)
"""Of the losses, in the order of ``network.LOSSES``."""

_WARMUP = 200

Losses = npt.NDArray[np.float32]


def optimizers(model: nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the layers' matrices and AdamW for everything else."""
    turned, decayed, plain = [], [], []
    for name, parameter in model.named_parameters():
        if ".layer." in name and parameter.dim() == 2:
            turned.append(parameter)
        else:
            (decayed if parameter.dim() > 1 else plain).append(parameter)
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    return [
        Muon(turned, rate, 0.01),
        torch.optim.AdamW(groups, rate, betas=(0.9, 0.98), fused=True),
    ]


class Learner:
    """A network with its optimisers; ``steps``, ``tokens``, ``seconds`` count all its runs."""

    def __init__(self, shape: BertConfig, *, rate: float, device: torch.device) -> None:
        self.network = Pretraining(shape).to(device).train()
        self.steps, self.tokens, self.seconds = 0, 0, 0.0
        self._shape, self._rate, self._device = shape, rate, device
        self._optimizers = optimizers(self.network, rate)
        self._weights = torch.tensor(_WEIGHTS, device=device)

    def resume(self, checkpoint: Path) -> None:
        """Restore the state that ``save`` wrote, on this device or another one."""
        stored = torch.load(checkpoint, weights_only=True, map_location="cpu")
        self.network.load_state_dict(stored["model"])
        for optimizer, past in zip(self._optimizers, stored["optimizers"], strict=True):
            optimizer.load_state_dict(past)
        self.steps, self.tokens, self.seconds = (stored[n] for n in ("step", "tokens", "spent"))

    def save(self, checkpoint: Path, *, signs: list[str]) -> None:
        """Replace the file when the new one is complete; ``signs`` are the predicted emoticons."""
        everything = {
            "model": self.network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "config": self._shape.to_dict(),
            "signs": signs,
            "step": self.steps,
            "tokens": self.tokens,
            "spent": self.seconds,
        }
        fresh = checkpoint.with_suffix(".tmp")
        torch.save(everything, fresh)
        fresh.replace(checkpoint)

    def learn(self, inputs: tuple[Tensor | Wanted, ...], *, share: float) -> Losses:
        """Take one step at a share of the full rate; return the losses before it."""
        share *= min(1.0, (self.steps + 1) / _WARMUP)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self._rate * share
        with torch.autocast(self._device.type, torch.bfloat16, enabled=halved(self._device)):
            parts = self.network(*inputs)
        (parts * self._weights).sum().backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        losses: Losses = parts.detach().cpu().numpy()
        return losses
