"""State of the engine as plain values, safe to keep and to show."""

from dataclasses import dataclass
from typing import Literal

State = Literal["LOADING", "READY", "UNAVAILABLE"]


@dataclass(frozen=True, slots=True)
class Effect:
    """Whether a group's outputs or times differ from those of its base group, and the evidence.

    The base group is `base` in config.toml, else the default group. `effective` is None while that
    is unknown; `reason` then explains why.
    """

    effective: bool | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The measurements of a group that may become the default group; None means unknown.

    The first group is the one that serves until the candidates are measured. `fit` means that the
    group is clearly faster than the first group and accurate enough. `gain` is its throughput
    divided by that of the first group on the same cores, with a 99 % interval
    (`gain_low`, `gain_high`). `seconds` is the duration of one run while nothing else runs.
    Differences and agreement compare its outputs with the golden output.
    """

    group: str
    fit: bool
    reason: str
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    seconds: float | None = None
    resident_bytes: int | None = None
    largest_difference: float | None = None
    mean_difference: float | None = None
    agreement: float | None = None


ChosenBy = Literal["config", "start", "measured", "kept"]
"""How the default group was chosen. "config": config.toml names it. "start": it serves until the
candidates are measured. "measured": it was the best of them. "kept": measured before this start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The default group of a model version and the reason for it.

    `at` is the time of the measurement, in seconds since 1970; None if nothing was measured.
    """

    group: str
    by: ChosenBy
    reason: str
    candidates: tuple[Candidate, ...] = ()
    at: float | None = None


CANNOT_START = "cannot start: "
"""Prefix of the reason of a group that cannot start on this machine."""

UNKNOWN_EFFECT = Effect(None, "not measured yet")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """State of one instance group; queue sizes are in jobs. `reason` is "" if it is ready."""

    name: str
    backend: str
    threads: int
    count: int
    live: int
    queue_depth: int
    queue_limit: int
    inflight: int
    resident_bytes: int
    started: bool
    ready: bool
    reason: str
    program: str | None = None
    effect: Effect = UNKNOWN_EFFECT


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """State of a version in the repository index; `version` is None for a model that has none."""

    name: str
    version: int | None
    state: State
    reason: str
