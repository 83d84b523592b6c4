"""A training run's state and arithmetic: schedule, optimiser step, average, resumption."""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from training.u2netp.augment import Recipe, Samples
from training.u2netp.data import Corpus, DataError, normalise
from training.u2netp.loader import load, to_input
from training.u2netp.loss import deep_loss
from training.u2netp.network import U2Netp


@dataclass(frozen=True, slots=True)
class Phase:
    """A stage at one picture size; every `fine`-th step is complete, the others coarse."""

    side: int
    pictures: int
    batch: int
    fine: int = 1


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that decides the result; stored in each checkpoint."""

    phases: tuple[Phase, ...]
    seed: int = 20
    rate: float = 2e-3
    decay: float = 1e-2
    warm_up: float = 0.03
    ema: float = 0.998
    recipe: Recipe = field(default_factory=Recipe)
    bf16: bool = True

    def rate_at(self, seen: int) -> float:
        """Learning rate after `seen` pictures."""
        done = total = 0.0
        for phase in self.phases:
            pixels = phase.side**2
            done += pixels * min(max(seen, 0), phase.pictures)
            total += pixels * phase.pictures
            seen -= phase.pictures
        part = done / total
        if part < self.warm_up:
            return self.rate * max(part / self.warm_up, 0.01)
        along = (part - self.warm_up) / (1 - self.warm_up)
        return self.rate * (0.5 + 0.5 * math.cos(math.pi * min(along, 1.0)))

    @property
    def pictures(self) -> int:
        """Length of the whole run in pictures."""
        return sum(phase.pictures for phase in self.phases)


def parse_phases(text: str) -> tuple[Phase, ...]:
    """Read `112x38000x8x3,160x17000x8`: side, pictures, batch and every how many steps is fine.

    The pictures are rounded down to whole batches.
    """
    phases = []
    for part in text.split(","):
        try:
            phase = Phase(*(int(number) for number in part.split("x")))
        except (TypeError, ValueError):
            raise argparse.ArgumentTypeError(
                f"{part!r}: expected SIDExPICTURESxBATCH or …xFINE, for example 112x38000x8x3"
            ) from None
        if phase.side < 64 or phase.side % 16 or not 2 <= phase.batch <= phase.pictures:
            raise argparse.ArgumentTypeError(
                f"{part!r}: side must be a multiple of 16 from 64, batch ≥ 2, pictures ≥ batch"
            )
        if phase.fine < 1:
            raise argparse.ArgumentTypeError(f"{part!r}: FINE must be at least 1")
        phases.append(replace(phase, pictures=phase.pictures - phase.pictures % phase.batch))
    return tuple(phases)


class Trainer:
    """Network, its running average, optimiser and place in the sample stream."""

    def __init__(
        self,
        corpus: Corpus,
        settings: Settings,
        *,
        device: str = "cpu",
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        torch.manual_seed(settings.seed)
        self.rank = rank
        self.ranks = ranks
        self.corpus = corpus
        self.settings = settings
        self.device = torch.device(device)
        network: U2Netp = U2Netp().to(self.device).to(memory_format=torch.channels_last)
        self.network = network
        self.average = copy.deepcopy(network).eval().requires_grad_(False)
        decayed = [p for p in network.parameters() if p.ndim > 1]
        plain = [p for p in network.parameters() if p.ndim <= 1]
        groups = [
            {"params": decayed, "weight_decay": settings.decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        self.optimiser = torch.optim.AdamW(groups, lr=settings.rate, fused=True)
        self.seen = 0
        self.steps = 0

    def _autocast(self) -> Any:
        if not self.settings.bf16:
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def step(self, pictures: Tensor, targets: Tensor) -> float:
        """One optimiser step on a uint8 batch (N×S×S×3, N×7×S×S); returns its loss."""
        inputs = to_input(pictures.to(self.device))
        goals = targets.to(self.device).float() / 255
        self.network.train()
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.rate_at(self.seen)
        with self._autocast():
            outputs = self.network(inputs, coarse=self.steps % self._fine() != 0)
        loss = deep_loss(outputs, goals)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self._share_gradients()
        nn.utils.clip_grad_norm_(self.network.parameters(), 5.0)
        self.optimiser.step()
        self.seen += len(pictures) * self.ranks
        self.steps += 1
        self._follow()
        return float(loss.detach())

    def _fine(self) -> int:
        seen = self.seen
        for phase in self.settings.phases:
            if seen < phase.pictures:
                return phase.fine
            seen -= phase.pictures
        return 1

    def _share_gradients(self) -> None:
        """Average the gradients of all ranks, in one message."""
        if self.ranks == 1:
            return
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients])
        torch.distributed.all_reduce(flat)
        sizes = [g.numel() for g in gradients]
        for gradient, part in zip(gradients, (flat / self.ranks).split(sizes), strict=True):
            gradient.copy_(part.view_as(gradient))

    @torch.no_grad()
    def _follow(self) -> None:
        """Update the running average; its decay is lower at first, so that it forgets the start."""
        decay = min(self.settings.ema, (1 + self.steps) / (10 + self.steps))
        mine = [v for v in self.average.state_dict().values() if v.is_floating_point()]
        new = [v for v in self.network.state_dict().values() if v.is_floating_point()]
        torch._foreach_lerp_(mine, new, 1 - decay)

    def batches(self, *, workers: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All batches from here to the end, phase after phase."""
        start = 0
        for phase in self.settings.phases:
            end = start + phase.pictures
            first = max(self.seen, start)
            if first < end:
                samples = Samples(
                    self.corpus,
                    size=phase.side,
                    seed=self.settings.seed,
                    recipe=self.settings.recipe,
                )
                share = phase.batch // self.ranks
                mine = self.rank * share
                # Whole batches only: each rank must take part in every step.
                places = range(first, end - phase.batch + 1, phase.batch)
                batches = [range(at + mine, at + mine + share) for at in places]
                yield from load(samples, batches, workers=workers)
            start = end

    def state(self) -> dict[str, Any]:
        """Return the state that a later process needs to continue the run exactly."""
        return {
            "network": self.network.state_dict(),
            "ema": self.average.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "seen": self.seen,
            "steps": self.steps,
            "settings": asdict(self.settings),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state() of a run with the same seed; the schedule may have changed."""
        if state["settings"]["seed"] != self.settings.seed:
            raise DataError(
                f"checkpoint has seed {state['settings']['seed']}, asked for {self.settings.seed}"
            )
        self.network.load_state_dict(state["network"])
        self.average.load_state_dict(state["ema"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.seen, self.steps = state["seen"], state["steps"]

    def calibrated(self, *, pictures: int, sharpen: float = 1.0) -> U2Netp:
        """The averaged network with batch statistics re-estimated at the serving size.

        `sharpen` multiplies the fused logits: with soft targets the network is less
        certain than it is accurate.
        """
        network = copy.deepcopy(self.average)
        norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean over all batches
            norm.train()
        random = np.random.default_rng([self.settings.seed, 3])
        rows = random.permutation(self.corpus.training)[:pictures]
        with torch.no_grad(), self._autocast():
            for start in range(0, len(rows), 8):
                inputs = [normalise(self.corpus.pictures[r]) for r in rows[start : start + 8]]
                batch = torch.from_numpy(np.stack(inputs)).to(self.device)
                network(batch.to(memory_format=torch.channels_last))
            network.outconv.weight *= sharpen
            network.outconv.bias *= sharpen
        return network.eval()
