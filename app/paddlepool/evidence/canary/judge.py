"""Runs a new version and the current one on the tensors of live requests, in idle moments.

Both run in processes beside the service, one after the other, and take turns in being first. No
client gets an answer of these runs.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from paddlepool.contracts.errors import (
    BackendError,
    CanaryConflict,
    ConfigError,
    InvalidParameter,
    ManifestError,
    ModelLoadFailed,
    ModelNotFound,
    ModelNotReady,
    PaddlepoolError,
)
from paddlepool.contracts.ports import Agreement, Clock, Slices, SlicesOf
from paddlepool.contracts.sentences import sentence
from paddlepool.contracts.status import Trial, TrialExample
from paddlepool.contracts.tensors import Tensors
from paddlepool.engine.registry.model import ServedModel
from paddlepool.engine.registry.promotions import Canary
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.evidence.canary.control import CanaryControl
from paddlepool.evidence.canary.evidence import (
    agreement_with,
    unlike,
    with_error,
    with_runs,
    worst,
)
from paddlepool.evidence.canary.gate import QualityGate
from paddlepool.evidence.canary.verdict import judge, summary, with_point
from paddlepool.evidence.live.shadow_predictor import ShadowPredictor, ShadowPredictors
from paddlepool.evidence.verdict.proof import Timed

RETRY_SECONDS = 60.0
"""Pause after a failure that says nothing about the new version."""

STORE_SECONDS = 10.0
"""Least time between two writes of the evidence. A crash loses what came after the last one."""

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Comparison:
    """A new version, its trial if it has one, and the open predictors of both versions."""

    canary: Canary
    served: ServedModel | None = None
    agreement: Agreement = lambda _own, _base: 0.0
    slices: Slices | None = None
    trial: Trial | None = None
    gate: QualityGate | None = None
    own: ShadowPredictor | None = None
    base: ShadowPredictor | None = None
    current: ServedModel | None = None
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


@dataclass(eq=False)
class Judge:
    """Compares versions; offer() is called from the event loop, all else from one thread.

    At most one sample of each model waits. A new version has one process, and so has the current
    one beside it; both are closed when the trial ends.
    """

    registry: ModelRegistry
    shadow_predictors: ShadowPredictors
    control: CanaryControl
    slices_of: SlicesOf = lambda _info: None
    quality_command: Callable[[str], Sequence[str]] = lambda _model: ()
    """Returns the command that measures the newest version of a model on labelled data."""
    max_resident_bytes: int = 2 << 30
    clock: Clock = time.monotonic
    wall_clock: Clock = time.time
    loop: asyncio.AbstractEventLoop = field(init=False)
    """The event loop of `registry`."""
    _comparisons: dict[Canary, _Comparison] = field(default_factory=dict, init=False)
    _waiting: dict[str, tuple[ServedModel, Tensors]] = field(default_factory=dict, init=False)

    def offer(self, served: ServedModel, inputs: Tensors) -> bool:
        """Store a sample of an answered request; return whether that was done.

        It is not done if a sample of the model waits already, if the model has no newer version, or
        if another replica judges.
        """
        if (
            self.control.judge
            or served.name in self._waiting
            or not any(
                canary.name == served.name and canary.version > served.version
                for canary in self.registry.canaries.all()
            )
        ):
            return False
        self._waiting[served.name] = (served, inputs)
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
        current = next((row for row in self.registry.served() if row.name == canary.name), None)
        comparison = self._comparisons.setdefault(canary, _Comparison(canary))
        if current is None or comparison.not_before > self.clock():
            self._waiting.pop(canary.name, None)
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
            self._decide(
                comparison, False, f"undecided after {hours:.2g} h: {summary(trial.evidence)}"
            )
            return True
        beside = self.registry.beside.get(canary.name)
        if beside is not None and beside.version == canary.version:
            faults = beside.faults
            if not beside.ready() or faults > current.config.version_policy.errors:
                reason = f"its processes ended while it answered requests (faults: {faults})"
                self._decide(comparison, False, reason)
                return True
        if not self._measured(comparison, current):
            self._waiting.pop(canary.name, None)
            return False
        if canary.name not in self._waiting:
            return False
        try:
            served, inputs = self._waiting[canary.name]
            if served is current or served.version == current.version:
                self._compare(comparison, current, trial, inputs)
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

    def _begin(self, comparison: _Comparison, current: ServedModel) -> None:
        """Read a new version; unless its trial is decided, open it and begin or continue the trial.

        A trial against another current version begins anew. Rejects a version that requests cannot
        test, see unlike(), or that cannot start. If the version cannot be read or judged now, it is
        tried again later.
        """
        canary, promotions = comparison.canary, self.control.promotions
        try:
            served = self.registry.canaries.read(canary)
            comparison.slices = self.slices_of(served.info)
        except (ManifestError, ModelNotFound, OSError) as error:  # incomplete, or gone
            self._retry(comparison, f"cannot be read: {_text(error)}")
            return
        except ConfigError as error:
            self._retry(comparison, f"cannot be judged: {error.message}")
            return
        comparison.served, canary.problem = served, ""
        comparison.agreement = agreement_with(served.selftest)
        sha256 = served.manifest.sha256()
        trial = promotions.trial(canary.name, canary.version, sha256)
        if trial is None or (trial.state == "testing" and trial.current != current.version):
            trial = Trial(
                model=canary.name,
                version=canary.version,
                sha256=sha256,
                current=current.version,
                since=self.wall_clock(),
            )
            log.info("%s@%d: canary beside version %d", served.name, served.version, trial.current)
        if trial.state != "testing":
            return
        promotions.put(trial)
        comparison.trial = trial
        if not trial.evidence.compared:
            self.control.examples.pop(canary.name, None)
        if reason := unlike(served, current):
            self._decide(comparison, False, reason)
            return
        self._open_own(comparison, current)
        if comparison.own is not None and current.config.version_policy.quality:
            self._measure(comparison)
        else:
            self._answer(comparison, current)

    def _measure(self, comparison: _Comparison) -> None:
        """Start to measure the quality of the new version."""
        command = self.quality_command(comparison.canary.name)
        suspension = self.shadow_predictors.idle_gate.suspension
        try:
            comparison.gate = QualityGate(command, suspension)
        except OSError as error:
            self._retry(comparison, f"cannot be measured: {_text(error)}")

    def _measured(self, comparison: _Comparison, current: ServedModel) -> bool:
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

    def _answer(self, comparison: _Comparison, current: ServedModel) -> None:
        """Let the new version answer the policy's fraction of the requests, if that is not 0.

        If it cannot be opened, rejects it, or tries again later if the system was the cause.
        """
        fraction = current.config.version_policy.fraction
        if not fraction or comparison.own is None or self._unfinished(comparison) is None:
            return
        opening = self.registry.open_beside(comparison.canary, fraction)
        try:
            asyncio.run_coroutine_threadsafe(opening, self.loop).result()
        except PaddlepoolError as error:
            self._decide(comparison, False, f"cannot answer requests: {_text(error)}")
        except OSError as error:
            self._retry(comparison, f"cannot answer requests: {_text(error)}")

    def _open_own(self, comparison: _Comparison, current: ServedModel) -> None:
        """Open the new version with the group that answers now, or else with its own default.

        The second group is tried only if the first is refused, not if its process dies. If no group
        can be opened, rejects the version, or tries again later if the system was the cause.
        """
        served = comparison.served
        assert served is not None  # noqa: S101  set by _begin()
        failure = ""
        for group in dict.fromkeys((current.config.default_group, served.config.default_group)):
            try:
                comparison.own = self.shadow_predictors.open(served, group)
            except OSError as error:  # the system cannot start a process now
                self._retry(comparison, f"cannot start: {_text(error)}")
                return
            except PaddlepoolError as error:
                failure = f"cannot start: {error.message}"
                if not isinstance(error, BackendError | ConfigError | InvalidParameter):
                    break  # its process died: another group is not tried
            else:
                comparison.group = group
                return
        self._decide(comparison, False, failure)

    def _compare(
        self, comparison: _Comparison, current: ServedModel, trial: Trial, inputs: Tensors
    ) -> None:
        """Run both versions on one sample, and judge.

        A failed run of the new version, or one that needs too much memory, counts as an error. If
        the run of the current version fails, the sample does not count.
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
                comparison.base = self.shadow_predictors.open(current, comparison.group)
                comparison.current = current
        except (PaddlepoolError, OSError) as error:
            self._retry(comparison, f"the current version cannot be opened: {_text(error)}")
            return
        sides = [own, comparison.base]
        if trial.evidence.compared % 2:
            sides.reverse()
        outcomes = {side: _outcome(side, inputs) for side in sides}
        expected, outcome = outcomes[comparison.base], outcomes[own]
        if isinstance(expected, PaddlepoolError):  # then the sample says nothing
            comparison.base.close()
            comparison.base = None
            log.warning("%s: a run of the current version failed: %s", trial.model, _text(expected))
            return
        failure = _text(outcome) if isinstance(outcome, PaddlepoolError) else ""
        if not failure and (held := own.predictor.resident_bytes()) > self.max_resident_bytes:
            limit = self.max_resident_bytes
            failure = f"a process of {held / 1e6:.0f} MB, the limit is {limit / 1e6:.0f} MB"
        if failure or isinstance(outcome, PaddlepoolError):
            evidence = with_error(trial.evidence, failure)
            own.close()
            comparison.own = None
        else:
            evidence = with_runs(
                trial.evidence,
                outcome,
                expected,
                agreement=comparison.agreement,
                slices=comparison.slices,
            )
            example = TrialExample(
                evidence.agreement - trial.evidence.agreement,
                inputs,
                outcome.outputs,
                expected.outputs,
            )
            most = current.config.version_policy.keep_examples
            known = self.control.examples.get(trial.model, ())
            self.control.examples[trial.model] = worst(known, example, most)
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
        served = [row for row in self.registry.served() if row.name == name]
        waits = bool(served) and served[0].config.version_policy.then == "wait"
        if not promote:
            change = control.reject(name, by="measured", reason=reason)
        elif waits:
            change = control.reject(name, by="measured", reason=reason, state="passed")
        else:
            change = control.promote(name, by="measured", reason=reason)
        with suppress(CanaryConflict, ModelNotFound, ModelNotReady):  # changed meanwhile
            try:
                asyncio.run_coroutine_threadsafe(change, self.loop).result()
            except ModelLoadFailed as error:
                self._retry(comparison, error.message)

    def _store(self, comparison: _Comparison, *, write: bool = True) -> None:
        if (trial := comparison.trial) is not None:
            self.control.promotions.record(trial, trial.evidence, write=write)
        if write:
            comparison.written_at = self.clock()

    def _retry(self, comparison: _Comparison, reason: str) -> None:
        canary = comparison.canary
        log.warning("%s@%d: canary %s", canary.name, canary.version, reason)
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


def _outcome(predictor: ShadowPredictor, inputs: Tensors) -> Timed | PaddlepoolError:
    """Return a run, or the error with which it failed. Raises Closed."""
    try:
        return predictor.run(inputs)
    except PaddlepoolError as error:
        return error


def _text(error: PaddlepoolError | OSError) -> str:
    if isinstance(error, OSError):
        return error.strerror or "the system refused"
    return sentence(error.message)
