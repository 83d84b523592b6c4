"""State of the engine as plain values, safe to keep and to show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["LOADING", "READY", "UNAVAILABLE"]


@dataclass(frozen=True, slots=True)
class Effect:
    """Whether a configuration does anything against its base group, and how that is known.

    `effective` is None while it is not known; the reason then says why not.
    """

    effective: bool | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What was found out about a group that may become the default group.

    `gain` is its throughput over that of the first group, on the same cores, with its 99 %
    interval; `seconds` is what one run takes while nothing else runs. Differences and agreement are
    from the golden output. None: not known.
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
"""How a default group came to be that: config.toml names it; it serves until the candidates are
measured; they were measured; that was before this start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The default group of a model version and why it is that.

    `at` is when it was measured, in seconds since 1970; None where nothing was.
    """

    group: str
    by: ChosenBy
    reason: str
    candidates: tuple[Candidate, ...] = ()
    at: float | None = None


CANNOT_START = "cannot start: "
"""How the reason begins of a group that this machine has refused."""

UNKNOWN_EFFECT = Effect(None, "not measured yet")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """One instance group now. `live` of `count` instances take batches; queue sizes are in jobs."""

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
    """One version in the index; `version` is None for a model without any version."""

    name: str
    version: int | None
    state: State
    reason: str
