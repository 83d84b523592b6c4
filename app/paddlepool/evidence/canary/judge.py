"""Runs a new version and the current one on live requests again, in idle moments.

Both run in processes beside the service, one after the other, and take turns in being first. No
client gets an answer of these runs. A model runs on the tensors of a request. A composed model
answers the whole request; its new version is a set of versions.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from paddlepool.contracts.errors import (
    BackendError,
    CanaryConflict,
    ConfigError,
    ManifestError,
    ModelLoadFailed,
    ModelNotFound,
    ModelNotReady,
    Overloaded,
    PaddlepoolError,
)
from paddlepool.contracts.ports import AgreementOf, Clock, SlicesOf
from paddlepool.contracts.sentences import sentence
from paddlepool.contracts.status import Trial, TrialEvidence, TrialExample
from paddlepool.engine.registry.canaries import Canary
from paddlepool.engine.registry.composed import ComposedModel, single
from paddlepool.engine.registry.composer import AnyModel
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.evidence.canary.control import CanaryControl
from paddlepool.evidence.canary.evidence import (
    agreement_with,
    size_of,
    unlike,
    with_answers,
    with_error,
    with_runs,
    worst,
)
from paddlepool.evidence.canary.gate import QualityGate
from paddlepool.evidence.canary.verdict import judge, summary, with_point
from paddlepool.evidence.canary.whole import PartPredictors, WholePredictor, whole_agreement
from paddlepool.evidence.live.shadow_predictor import ShadowPredictors
from paddlepool.evidence.verdict.proof import Timed

RETRY_SECONDS = 60.0
"""Pause after a failure that says nothing about the new version."""

STORE_SECONDS = 10.0
"""Least time between two writes of evidence that gives no verdict. A crash loses what came after
the last write."""

PAYLOAD_BYTES = 64 << 20
"""A larger payload of a request to a composed model is not compared."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class _Side(Protocol):
    """Answers samples with one version: the tensors of a request, or the payload of a whole one."""

    def run(self, sample: Any) -> Timed: ...

    def resident_bytes(self) -> int: ...

    def close(self) -> None: ...


@dataclass(eq=False, slots=True)
class _Comparison:
    """A new version, its trial if it has one, and the open predictors of both versions."""

    canary: Canary
    loop: asyncio.AbstractEventLoop
    served: AnyModel | None = None
    with_outcomes: Callable[[TrialEvidence, Timed, Timed], TrialEvidence] = lambda known, *_: known
    trial: Trial | None = None
    gate: QualityGate | None = None
    own: _Side | None = None
    base: _Side | None = None
    current: AnyModel | None = None
    whole: ComposedModel | None = None
    """A composed model as it serves, with a pipeline of its own; None for another model."""
    group: str = ""
    not_before: float = 0.0
    written_at: float = 0.0

    def close(self) -> None:
        if self.gate is not None:
            self.gate.close()
        self.gate = None
        for predictor in (self.own, self.base):
            if predictor is not None:
                predictor.close()
        self.own = self.base = self.current = None
        for model in (self.served, self.whole):
            if isinstance(model, ComposedModel) and model.pipeline is not None:
                with suppress(RuntimeError):  # the loop has ended
                    self.loop.call_soon_threadsafe(model.pipeline.close)
                model.pipeline = None


@dataclass(eq=False)
class Judge:
    """Compares versions; offer() is called from the event loop, all else from one thread.

    At most one sample of each model waits. The two versions run in processes that serve no request
    and are closed when the trial ends: one for each version, or for each of its parts.
    """

    registry: ModelRegistry
    shadow_predictors: ShadowPredictors
    control: CanaryControl
    slices_of: SlicesOf = lambda _info: None
    agreement_of: AgreementOf = lambda _info: None
    """Returns the measure of a composed model's task; other models have their own."""
    quality_command: Callable[[str], Sequence[str]] = lambda _model: ()
    """Returns the command that measures the newest version of a model on labelled data."""
    max_resident_bytes: int = 2 << 30
    clock: Clock = time.monotonic
    wall_clock: Clock = time.time
    loop: asyncio.AbstractEventLoop = field(init=False)
    """The event loop of `registry`."""
    _comparisons: dict[Canary, _Comparison] = field(default_factory=dict, init=False)
    _waiting: dict[str, tuple[AnyModel, Any]] = field(default_factory=dict, init=False)

    def offer(self, served: AnyModel, sample: Any) -> bool:
        """Store a sample of an answered request; return whether that was done.

        A sample is the tensors of a run, or the payload of a request to a composed model. It is not
        stored if one of the model waits already, if the model has no new version, if another
        replica judges, or if it is a payload of more than PAYLOAD_BYTES.
        """
        if (
            self.control.judge
            or served.name in self._waiting
            or not any(
                canary.name == served.name and canary.version_set != served.version_set
                for canary in self.registry.canaries.all()
            )
        ):
            return False
        if isinstance(served, ComposedModel) and size_of(sample) > PAYLOAD_BYTES:
            return False
        self._waiting[served.name] = (served, sample)
        return True

    def waiting(self) -> bool:
        return bool(self._waiting)

    def judge_one(self) -> bool:
        """For each new version, begin its trial, compare one request, or decide. Raises Closed.

        Blocks the thread. Returns False if there was nothing to do for any version.
        """
        canaries = () if self.control.judge else self.registry.canaries.all()
        for gone in [canary for canary in self._comparisons if canary not in canaries]:
            self._comparisons.pop(gone).close()
        for name in set(self._waiting) - {canary.name for canary in canaries}:
            del self._waiting[name]
        advanced = [self._advance(canary) for canary in canaries]
        return any(advanced)

    def _advance(self, canary: Canary) -> bool:
        current = self.registry.newest(canary.name)
        comparison = self._comparisons.setdefault(canary, _Comparison(canary, self.loop))
        if current is None or comparison.not_before > self.clock():
            self._waiting.pop(canary.name, None)
            if current is None:
                comparison.close()
                comparison.served = None
            return False
        if comparison.served is None:
            self._begin(comparison, current)
            return True
        trial = self._unfinished(comparison)
        if trial is None:
            self._waiting.pop(canary.name, None)
            comparison.close()
            return False
        hours = (self.wall_clock() - trial.since) / 3600
        if hours > current.config.version_policy.within:
            reason = f"undecided after {hours:.2g} h: {summary(trial.evidence)}"
            self._decide(comparison, False, reason)
            return True
        beside = self.registry.beside.get(canary.name)
        if beside is not None and beside.version_set == canary.version_set:
            own = beside.own_parts if isinstance(beside, ComposedModel) else (beside,)
            faults, most = beside.faults, current.config.version_policy.errors
            if faults > most or not all(model.ready() for model in own):
                reason = f"its processes ended while it answered requests (faults: {faults})"
                self._decide(comparison, False, reason)
                return True
        if not self._measured(comparison, current):
            self._waiting.pop(canary.name, None)
            return False
        if beside is None:  # it was closed with a part that was replaced
            self._answer(comparison, current)
        if canary.name not in self._waiting:
            return False
        try:
            served, sample = self._waiting[canary.name]
            if served.version_set == current.version_set:
                self._compare(comparison, current, trial, sample)
        finally:
            self._waiting.pop(canary.name, None)
        return True

    def _unfinished(self, comparison: _Comparison) -> Trial | None:
        """Return the trial with its evidence; None if it is decided."""
        trial = comparison.trial
        if trial is None:
            return None
        stored = self.control.promotions.trial(trial.model, trial.version, trial.sha256)
        return trial if stored is not None and stored.state == "testing" else None

    def _begin(self, comparison: _Comparison, current: AnyModel) -> None:
        """Read a new version; unless its trial is decided, open it and begin or continue the trial.

        A trial against another current version begins anew. Rejects a version that requests cannot
        test, see unlike(), or that cannot start. If the version cannot be read or judged now, it is
        tried again later.
        """
        canary, promotions = comparison.canary, self.control.promotions
        try:
            served = self._read(comparison, current)
        except (ManifestError, ModelNotFound, BackendError, OSError) as error:  # incomplete, gone
            self._retry(comparison, f"cannot be read: {_text(error)}")
            return
        except ConfigError as error:
            self._retry(comparison, f"cannot be judged: {error.message}")
            return
        comparison.served, canary.problem = served, ""
        sha256 = served.sha256()
        trial = promotions.trial(canary.name, canary.version, sha256)
        if trial is None or (trial.state == "testing" and trial.current_set != current.version_set):
            trial = Trial(
                model=canary.name,
                version=canary.version,
                sha256=sha256,
                current=current.version,
                since=self.wall_clock(),
                parts=dict(canary.parts),
                current_parts=dict(current.version_set.parts),
            )
            text = canary.version_set.text(canary.name, current.version_set)
            log.info("%s: canary beside version %d", text, trial.current)
        if trial.state != "testing":
            return
        promotions.put(trial)
        comparison.trial = trial
        if not trial.evidence.compared:
            self.control.examples.pop(canary.name, None)
        if comparison.whole is None and (reason := unlike(single(served), single(current))):
            self._decide(comparison, False, reason)
            return
        self._open_own(comparison, current)
        if comparison.own is not None and current.config.version_policy.quality:
            self._measure(comparison)
        else:
            self._answer(comparison, current)

    def _read(self, comparison: _Comparison, current: AnyModel) -> AnyModel:
        """Read a new version and set `with_outcomes`. Raises as Canaries.read() and compose()."""
        canaries, canary = self.registry.canaries, comparison.canary
        if isinstance(current, ComposedModel):
            own, base = (
                self._on_loop(canaries.compose(canary.name, versions))
                for versions in (canary.version_set, current.version_set)
            )
            comparison.whole = base
            measure = whole_agreement(base, self.agreement_of(base.info))
            comparison.with_outcomes = partial(with_answers, agreement=measure)
            return own
        served = canaries.read(canary)
        comparison.with_outcomes = partial(
            with_runs,
            agreement=agreement_with(served.selftest),
            slices=self.slices_of(served.info),
        )
        return served

    def _on_loop(self, change: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(change, self.loop).result()

    def _measure(self, comparison: _Comparison) -> None:
        """Start to measure the quality of the new version."""
        command = self.quality_command(comparison.canary.name)
        suspension = self.shadow_predictors.idle_gate.suspension
        try:
            comparison.gate = QualityGate(command, suspension)
        except OSError as error:
            self._retry(comparison, f"cannot be measured: {_text(error)}")

    def _measured(self, comparison: _Comparison, current: AnyModel) -> bool:
        """Whether the measurement of quality has ended, or none is running; act on its result."""
        if comparison.gate is None:
            return True
        fault = comparison.gate.fault(current.config.version_policy.quality)
        if fault is None:
            return False
        comparison.gate = None
        if fault:
            self._decide(comparison, False, fault)
        else:
            self._answer(comparison, current)
        return True

    def _answer(self, comparison: _Comparison, current: AnyModel) -> None:
        """Let the new version answer the policy's fraction of the requests, if that is not 0.

        If it cannot be opened, rejects it, or tries again later if the system was the cause.
        """
        fraction = current.config.version_policy.fraction
        if not fraction or comparison.own is None or self._unfinished(comparison) is None:
            return
        try:
            self._on_loop(self.registry.open_beside(comparison.canary, fraction))
        except PaddlepoolError as error:
            self._decide(comparison, False, f"cannot answer requests: {_text(error)}")
        except OSError as error:
            self._retry(comparison, f"cannot answer requests: {_text(error)}")

    def _open_own(self, comparison: _Comparison, current: AnyModel) -> None:
        """Open the new version with the group that answers now, or else with its own default.

        The second group is tried only if the first is refused, not if its process dies. If no group
        can be opened, rejects the version, or tries again later if the system was the cause.
        """
        served = comparison.served
        assert served is not None  # noqa: S101  set by _begin()
        try:
            if isinstance(served, ComposedModel) and isinstance(current, ComposedModel):
                comparison.own = self._open_whole(comparison, served, current)
            else:
                groups = current.config.default_group, served.config.default_group
                opened = self.shadow_predictors.open_first(single(served), *groups)
                comparison.own, comparison.group = opened
        except (OSError, Overloaded) as error:  # the system cannot start a process now
            self._retry(comparison, f"cannot start: {_text(error)}")
        except PaddlepoolError as error:
            self._decide(comparison, False, f"cannot start: {error.message}")

    def _open_whole(
        self, comparison: _Comparison, served: ComposedModel, current: ComposedModel
    ) -> WholePredictor:
        """Open a set of versions, and the current one first. Raises as WholePredictor.open()."""
        assert comparison.whole is not None  # noqa: S101  set by _read()
        groups = {part.name: part.config.default_group for part in current.parts.values()}
        predictors = PartPredictors(self.shadow_predictors, groups)
        comparison.base = WholePredictor(comparison.whole, predictors, self.loop)
        comparison.current = current
        try:
            predictors.open(comparison.whole)
        except PaddlepoolError as error:
            raise Overloaded(f"the current version cannot be opened: {error.message}") from error
        shared = current.version_set.parts.items()
        (own := WholePredictor(served, predictors, self.loop, shared)).open()
        return own

    def _open_base(self, comparison: _Comparison, current: AnyModel) -> _Side:
        """Return a predictor of the current version. Raises as ShadowPredictors.open() does."""
        if isinstance(comparison.own, WholePredictor) and comparison.whole is not None:
            return WholePredictor(comparison.whole, comparison.own.predictors, self.loop)
        return self.shadow_predictors.open(single(current), comparison.group)

    def _compare(
        self, comparison: _Comparison, current: AnyModel, trial: Trial, sample: Any
    ) -> None:
        """Run both versions on one sample, and judge.

        A failed run of the new version, or one that needs too much memory, counts as an error. The
        sample does not count if the current version fails, or the new one with Overloaded.
        """
        if comparison.own is None:
            self._open_own(comparison, current)
        if comparison.current is not current and comparison.base is not None:
            comparison.base.close()
            comparison.base = None
        own = comparison.own
        if own is None:
            return
        try:
            if comparison.base is None:
                comparison.base = self._open_base(comparison, current)
                comparison.current = current
        except (PaddlepoolError, OSError) as error:
            self._retry(comparison, f"the current version cannot be opened: {_text(error)}")
            return
        sides = [own, comparison.base]
        if trial.evidence.compared % 2:
            sides.reverse()
        outcomes = {side: _outcome(side, sample) for side in sides}
        expected, outcome = outcomes[comparison.base], outcomes[own]
        if isinstance(expected, PaddlepoolError):  # then the sample says nothing
            comparison.base.close()
            comparison.base = None
            log.warning("%s: a run of the current version failed: %s", trial.model, _text(expected))
            return
        if isinstance(outcome, Overloaded):  # of the server, not of the version
            log.info("%s: a request was not compared: %s", trial.model, _text(outcome))
            return
        failure = _text(outcome) if isinstance(outcome, PaddlepoolError) else ""
        if not failure and (held := own.resident_bytes()) > self.max_resident_bytes:
            limit = self.max_resident_bytes
            failure = f"a process of {held / 1e6:.0f} MB, the limit is {limit / 1e6:.0f} MB"
        if failure or isinstance(outcome, PaddlepoolError):
            evidence = with_error(trial.evidence, failure)
            own.close()
            comparison.own = None
        else:
            evidence = comparison.with_outcomes(trial.evidence, outcome, expected)
            example = TrialExample(
                evidence.agreement - trial.evidence.agreement,
                sample,
                outcome.outputs,
                expected.outputs,
            )
            most = current.config.version_policy.keep_examples
            known = self.control.examples.get(trial.model, ())
            self.control.examples[trial.model] = worst(known, example, most)
            if comparison.base.resident_bytes() > self.max_resident_bytes:
                comparison.base.close()
                comparison.base = None  # as a serving process, it is replaced by a fresh one
        evidence = with_point(evidence, self.wall_clock())
        comparison.trial = replace(trial, evidence=evidence)
        verdict = judge(evidence, current.config.version_policy)
        if verdict.promote is not None:
            self._decide(comparison, verdict.promote, verdict.reason)
        else:
            write = self.clock() >= comparison.written_at + STORE_SECONDS
            self._store(comparison, write=write)

    def _decide(self, comparison: _Comparison, promote: bool, reason: str) -> None:
        """Store the verdict, and let the new version serve if it and the policy's `then` say so.

        Closes the predictors. If a person has decided meanwhile, that decision stays.
        """
        trial = comparison.trial
        assert trial is not None  # noqa: S101  there is no verdict without a trial
        comparison.close()
        self._store(comparison)
        control, name = self.control, trial.model
        served = self.registry.newest(name)
        waits = served is not None and served.config.version_policy.then == "wait"
        if not promote:
            change = control.reject(name, by="measured", reason=reason)
        elif waits:
            change = control.reject(name, by="measured", reason=reason, state="passed")
        else:
            change = control.promote(name, by="measured", reason=reason)
        with suppress(CanaryConflict, ModelNotFound, ModelNotReady):  # changed meanwhile
            try:
                self._on_loop(change)
            except ModelLoadFailed as error:
                self._retry(comparison, error.message)

    def _store(self, comparison: _Comparison, *, write: bool = True) -> None:
        if (trial := comparison.trial) is not None:
            self.control.promotions.record(trial, trial.evidence, write=write)
        if write:
            comparison.written_at = self.clock()

    def _retry(self, comparison: _Comparison, reason: str) -> None:
        canary, current = comparison.canary, self.registry.newest(comparison.canary.name)
        versions = canary.version_set
        text = versions.text(canary.name, versions if current is None else current.version_set)
        log.warning("%s: canary %s", text, reason)
        canary.problem = reason
        self._store(comparison)
        comparison.close()
        comparison.served = comparison.trial = None  # so that nothing is left out the next time
        comparison.not_before = self.clock() + RETRY_SECONDS

    def close(self) -> None:
        for comparison in self._comparisons.values():
            self._store(comparison)
            comparison.close()
        self._comparisons.clear()


def _outcome(side: _Side, sample: Any) -> Timed | PaddlepoolError:
    """Return a run, or the error with which it failed. Raises Closed."""
    try:
        return side.run(sample)
    except PaddlepoolError as error:
        return error


def _text(error: PaddlepoolError | OSError) -> str:
    if isinstance(error, OSError):
        return error.strerror or "the system refused"
    return sentence(error.message)
