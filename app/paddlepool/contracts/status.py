"""State of the engine as plain values, safe to keep and to show."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from paddlepool.contracts.tensors import Tensors

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


TrialState = Literal["testing", "passed", "promoted", "rejected"]
"""State of a new version. "testing": it is compared with the version that serves. "passed": it has
proven itself and waits for a person. "promoted": it serves. "rejected": it stays unloaded."""
UNFINISHED: tuple[TrialState, ...] = ("testing", "passed")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPoint:
    """The figures of a trial after its first `compared` requests; `at` is in seconds since 1970.

    The interval of `agreement` is a 99 % one. `drift` is the largest difference so far. `ratio` is
    the median ratio of run times; None means unknown.
    """

    compared: int
    at: float
    agreement: float
    agreement_low: float
    agreement_high: float
    drift: float
    ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEvidence:
    """What the comparison of two versions on live requests has shown so far.

    `agreement` is the sum over the `compared` requests. `seconds` has a pair of run times (new
    version, current version) for each request whose runs were not interrupted, the last ones only.
    `slices` has, for each kind of answer of the current version, the number of rows and the sum of
    their agreement. `drift` is the largest difference of a finite output. `error` is the last one.
    `history` has the figures at some of the requests, oldest first; the last point is the latest.
    """

    compared: int = 0
    agreement: float = 0.0
    identical: int = 0
    drift: float = 0.0
    errors: int = 0
    error: str = ""
    seconds: tuple[tuple[float, float], ...] = ()
    slices: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    history: tuple[TrialPoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A new version that must prove itself against `current`, the version that served then.

    `sha256` is the fingerprint of its files. `since` and `at`, the time of the verdict, are in
    seconds since 1970. `by` says who decided.
    """

    model: str
    version: int
    sha256: str
    current: int
    since: float
    state: TrialState = "testing"
    reason: str = ""
    by: Literal["measured", "person"] = "measured"
    at: float | None = None
    evidence: TrialEvidence = field(default_factory=TrialEvidence)


class TrialExample(NamedTuple):
    """A request on which a new version differs from the current one.

    `outputs` are those of the new version, `expected` those of the current one.
    """

    agreement: float
    inputs: Tensors
    outputs: Tensors
    expected: Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceStatus:
    """Agreement of the answers of one kind, such as a label of the current version."""

    name: str
    rows: int
    agreement: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryStatus:
    """A new version and the evidence about it. Intervals are 99 % ones; None means unknown.

    `ratio` is its run time divided by that of the version `current`. `serving` is the version that
    answers now, `previous` the one to which `rollback` returns. `slices` are those that differ
    most, worst first. `history` has the figures as the comparisons accumulated, at most 60 points,
    and `agreement_limit` and `ratio_limit` are the policy's `agreement` and `slower`.
    """

    model: str
    serving: int | None
    previous: int | None
    version: int | None = None
    current: int | None = None
    state: TrialState | None = None
    reason: str = ""
    by: str = ""
    since: float | None = None
    at: float | None = None
    requests: int = 0
    compared: int = 0
    agreement: float | None = None
    agreement_low: float | None = None
    agreement_high: float | None = None
    identical: int = 0
    drift: float = 0.0
    errors: int = 0
    error: str = ""
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    pairs: int = 0
    slices: tuple[SliceStatus, ...] = ()
    agreement_limit: float | None = None
    ratio_limit: float | None = None
    history: tuple[TrialPoint, ...] = ()
