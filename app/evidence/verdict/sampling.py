"""Interleaved runs of several groups on the same inputs: a busy machine slows all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from app.contracts.tensors import Tensors
from app.evidence.verdict.proof import Evidence, bitwise_equal


@dataclass(frozen=True, slots=True)
class Timed:
    """One run's outputs; `seconds` is None when requests interrupted it."""

    outputs: Tensors
    seconds: float | None


Runner = Callable[[Tensors], Timed]


@dataclass(slots=True)
class Runs:
    """One group's runs: seconds in the order of the rounds, and the first outputs per input."""

    seconds: list[float] = field(default_factory=list)
    outputs: list[Tensors] = field(default_factory=list)
    repeatable: bool = True

    def keep(self, index: int, outputs: Tensors) -> None:
        if index == len(self.outputs):
            self.outputs.append(outputs)
        elif self.repeatable:
            self.repeatable = bitwise_equal(outputs, self.outputs[index])


def interleave(
    runners: Mapping[str, Runner],
    inputs: Sequence[Tensors],
    *,
    rounds: int,
    enough: Callable[[Mapping[str, Runs]], bool] = lambda _runs: False,
) -> dict[str, Runs]:
    """Run every group once per round, cycling through the inputs, until `enough` returns True.

    Each round begins with the next group, so that no group always runs first. The times of a round
    count only if none of its runs was interrupted.
    """
    runs = {name: Runs() for name in runners}
    names = list(runners)
    for number in range(rounds):
        index, start = number % len(inputs), number % len(names)
        timed = {name: runners[name](inputs[index]) for name in names[start:] + names[:start]}
        seconds = {name: t.seconds for name, t in timed.items() if t.seconds is not None}
        for name, each in timed.items():
            runs[name].keep(index, each.outputs)
            if len(seconds) == len(names):
                runs[name].seconds.append(seconds[name])
        if enough(runs):
            break
    return runs


def evidence(own: Runs, base_runs: Runs, *, base: str) -> Evidence:
    """Return the evidence on a group from its runs and the interleaved runs of its base."""
    return Evidence(
        base=base,
        seconds=own.seconds,
        base_seconds=base_runs.seconds,
        bitwise_equal=all(
            bitwise_equal(a, b) for a, b in zip(own.outputs, base_runs.outputs, strict=True)
        ),
        repeatable=own.repeatable and base_runs.repeatable,
    )
