"""State of the engine as plain values, safe to keep and to show."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

State = Literal["LOADING", "READY", "UNAVAILABLE"]


@dataclass(frozen=True, slots=True)
class Effect:
    """Whether a group's outputs or times differ from those of its base group, and the evidence.

    The base group is `base` in config.toml, else the default group. `effective` is None while it is
    unknown whether they differ. `reason` is the evidence, or why it is unknown.
    """

    effective: bool | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The measurements of a group that may become the default group; None means unknown.

    It is measured against the first group, ModelConfig.first_group. `fit` means that it may replace
    that group: it is clearly faster and accurate enough. `gain` is its throughput divided by that
    of the first group on the same cores; `gain_low` to `gain_high` is the 99 % interval. `seconds`
    is the duration of one run while nothing else runs, `resident_bytes` the memory of one process.
    Differences and agreement compare its outputs with the expected outputs of the version's
    self-test.
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
candidates are measured. "measured": the measurement chose it. "kept": a measurement before the
version was loaded chose it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The default group of a model version and the reason for it.

    `at` is when the measurement of the candidates ended, in seconds since 1970; None before that,
    and without a measurement.
    """

    group: str
    by: ChosenBy
    reason: str
    candidates: tuple[Candidate, ...] = ()
    at: float | None = None


CANNOT_START = "cannot start: "
"""Prefix of the reason of a group that cannot start."""

UNKNOWN_EFFECT = Effect(None, "not measured yet")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """State of one instance group.

    `live` of its `count` instances take batches. `queue_depth`, `queue_limit` and `inflight` are
    numbers of jobs: those that wait, the limit on these, and those that run. `resident_bytes` is
    the memory of its processes in service. `started` means that Group.start() was called, and the
    group was not stopped since. `reason` says why it is not ready; it is "" if it is ready.
    """

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
    """State of a version in the repository index.

    `version` is None for a model without versions. `reason` may be empty.
    """

    name: str
    version: int | None
    state: State
    reason: str


class VersionSet(NamedTuple):
    """A version of a model; of a composed model, also the version of each model that is a part."""

    version: int
    parts: Mapping[str, int] = MappingProxyType({})

    def text(self, name: str, before: "VersionSet") -> str:
        """Return `name@1`, or `name@1 with part@2` if parts differ from those of `before`."""
        parts = [f"{part}@{n}" for part, n in self.parts.items() if before.parts.get(part) != n]
        return f"{name}@{self.version}" + (f" with {', '.join(parts)}" if parts else "")


TrialState = Literal["testing", "passed", "promoted", "rejected"]
"""State of the trial of a new version. "testing": it is compared with the version that serves.
"passed": it has proven itself and waits for a person. "promoted": it has begun to serve.
"rejected": it stays unloaded."""
UNFINISHED: tuple[TrialState, ...] = ("testing", "passed")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPoint:
    """The figures of a trial after its first `compared` requests; `at` is in seconds since 1970.

    The interval of `agreement` is a 99 % one. `drift` is the largest difference so far. `ratio` is
    the median ratio of run times, new version to current one; None if unknown.
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

    `agreement` is the sum over the `compared` requests, of which `identical` had bitwise equal
    outputs. `errors` of them failed on the new version, with an agreement of 0; `error` is the last
    failure. `drift` is the largest difference of the outputs of a request that did not fail.
    `seconds` has the run times (new version, current version) of the latest requests whose runs
    were not interrupted. `slices` has, for each kind of answer of the current version, the number
    of rows and the sum of their agreement. `history` has the figures after some of the requests,
    oldest first; its last point is the latest.
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
    """A new version that must prove itself against `current`, which served when the trial began.

    `sha256` is the fingerprint of its files and, for a composed model, of its parts. `since` is
    when the trial began and `at` when it was decided, in seconds since 1970; `at` is None before
    that. `by` says who decided: the measurements, or a person. `parts` and `current_parts` are the
    versions of the parts of a composed model, by model.
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
    parts: Mapping[str, int] = field(default_factory=dict)
    current_parts: Mapping[str, int] = field(default_factory=dict)

    @property
    def version_set(self) -> VersionSet:
        return VersionSet(self.version, self.parts)

    @property
    def current_set(self) -> VersionSet:
        return VersionSet(self.current, self.current_parts)


class TrialExample(NamedTuple):
    """A request on which a new version differs from the current one.

    `outputs` are those of the new version, `expected` those of the current one. For a composed
    model, `inputs` is the payload of its task, and the outputs are its answers as JSON values.
    """

    agreement: float
    inputs: Any
    outputs: Any
    expected: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceStatus:
    """Mean agreement over `rows` answers of one kind, such as a label of the current version."""

    name: str
    rows: int
    agreement: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryStatus:
    """The new version of a model and the evidence about it.

    `serving` is the version that answers now, `previous` the one to which `rollback` returns.
    `version` is the new version of the latest trial, and `current` the one with which it is
    compared; values about them are None, 0 or empty if unknown, or without a trial. The first
    verdict that may promote it comes after about `requests` comparisons; `compared` were made.
    `agreement` is a mean. `ratio` is the run time of the new version divided by that of `current`,
    from `pairs` of runs. Intervals (`_low` to `_high`) have 99 % confidence. `drift` is the largest
    difference of the outputs. `slices` are the kinds of answers with the most different rows, at
    most 5, in falling order. `history` has the figures as the comparisons accumulated, at most 60
    points. `agreement_limit` and `ratio_limit` are the policy's `agreement` and `slower`. Of a
    composed model, each version comes with those of its parts, by model.
    """

    model: str
    serving: int | None = None
    previous: int | None = None
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
    serving_parts: Mapping[str, int] = field(default_factory=dict)
    previous_parts: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, int] = field(default_factory=dict)
    current_parts: Mapping[str, int] = field(default_factory=dict)
