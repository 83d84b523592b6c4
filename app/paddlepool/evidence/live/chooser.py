"""Measures, chooses and sets the default group of each model with `default_group = "auto"`.

One candidate at a time is measured against the first group, in idle moments. The two groups take
turns. Each group runs all its processes at once, because processes in service slow each other down.
Each group has as many processes as it has or would have in service, but at most TOGETHER, and fewer
if memory is short.
"""

import asyncio
import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Literal

from paddlepool.contracts.errors import BackendError, ModelNotReady, PaddlepoolError
from paddlepool.contracts.ports import Clock
from paddlepool.contracts.resources import available_memory
from paddlepool.contracts.status import CANNOT_START, Candidate, Choice, Effect
from paddlepool.contracts.tensors import Tensors, largest_difference, shape_key
from paddlepool.engine.pool.group import CRASH_LOOP
from paddlepool.engine.registry.model import ServedModel, first_choice
from paddlepool.engine.registry.registry import ModelRegistry
from paddlepool.evidence.live.shadow_predictor import (
    FinalFailures,
    ShadowPredictor,
    ShadowPredictors,
    run_together,
)
from paddlepool.evidence.verdict import proof
from paddlepool.evidence.verdict.proof import EXACT_DIFFERENCE, MIN_PAIRS
from paddlepool.models.repository.config import TOGETHER
from paddlepool.models.repository.layout import ModelFiles

Choosing = Literal["off", "auto", "exact"]

RETRY_SECONDS = 120.0
"""Pause before candidates without a final result are measured again.

Their runs were interrupted or noisy, a process crashed or could not start, the model's files were
gone, or memory was short.
"""

MORE_ROUNDS = 3
"""How often, at most, undecided candidates are measured again after another one was chosen."""

ROOM = 1.25
"""Assumed memory of a measured process, relative to a serving process."""

ALONE_RUNS = 5

QUICK_PAIRS = 3
"""A candidate that is slower in all of its first QUICK_PAIRS pairs is not measured further."""

MAX_PAIRS = 24
MAX_ROUNDS = 100
"""More than MAX_PAIRS, because pairs with an interrupted run do not count."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Search:
    """Results for one model version's candidates, and the candidates still to be tried.

    The results of `undecided` candidates are not final. `rounds` is how often these may still be
    measured again after a choice. `process_bytes` is the memory of the largest process in service
    so far.
    """

    waiting: list[str]
    results: dict[str, Candidate] = field(default_factory=dict)
    undecided: list[str] = field(default_factory=list)
    not_before: float = -math.inf
    rounds: int = MORE_ROUNDS
    process_bytes: float = 0.0


@dataclass(slots=True, eq=False)
class Chooser:
    """Chooses default groups; owned by one thread. `store` saves each choice for the next start."""

    registry: ModelRegistry
    shadow_predictors: ShadowPredictors
    precision: Choosing
    store: Callable[[ModelFiles, Choice], None]
    clock: Clock = time.monotonic
    wall_clock: Clock = time.time
    free_bytes: Callable[[], int] = available_memory
    loop: asyncio.AbstractEventLoop = field(init=False)
    """The event loop of `registry`."""
    _final_failures: FinalFailures = field(default_factory=FinalFailures, init=False)
    _searches: dict[ServedModel, _Search] = field(default_factory=dict, init=False)
    _crashed: dict[tuple[str, str, str], str] = field(default_factory=dict, init=False)

    def choose_one(self) -> bool:
        """Measure one candidate, choose a default group, or give up a crashing one. Raises Closed.

        A default group is chosen once all candidates of its model are measured. Models on demand
        are measured only while they run. Blocks the thread. Returns False if there is nothing to
        do.
        """
        if self.precision == "off":
            return False
        models = self.registry.served()
        self._searches = {key: search for key, search in self._searches.items() if key in models}
        for served in models:
            if self._give_up_crashing(served):
                return True
            if not served.running:  # starts on demand, and no request has used it
                continue
            unfinished = served.choice.by == "start" or served in self._searches
            if unfinished and self._advance_search(served):
                return True
        return False

    def _advance_search(self, served: ServedModel) -> bool:
        search = self._searches.get(served)
        if search is None:
            config = served.files.config
            groups = [group.name for group in config.instance_group if group.candidate]
            waiting = [name for name in groups if name != config.first_group]
            search = self._searches[served] = _Search(waiting)
        if search.not_before > self.clock():
            return False
        if search.waiting:
            group = search.waiting[0]
            candidate, final = self._try(served, group, self._room_for(served, group, search))
            search.waiting.remove(group)  # kept until now, because _try() may raise Closed
            search.results[group] = candidate
            if not final:
                search.undecided.append(group)
            log.info("%s@%d %s: %s", served.name, served.version, group, candidate.reason)
            served.record_choice(replace(served.choice, candidates=tuple(search.results.values())))
        else:
            self._conclude(served, search)
        return True

    def _try(self, served: ServedModel, name: str, together: int) -> tuple[Candidate, bool]:
        """Measure the candidate `name` against the first group. Raises Closed.

        Each group runs up to `together` processes. Returns the result, and whether it is final. If
        the first group is the base of `name`, also records whether `name` has an effect.
        """
        config = served.files.config
        group, first = config.group(name), config.default_group

        def unfit(reason: str) -> Candidate:
            return Candidate(group=name, fit=False, reason=reason)

        count = config.count_in_place(name)
        if count == 0:
            return unfit(f"it takes {group.threads} threads, more than {first} has"), True
        if self.precision == "exact" and group.budget is not None:
            return unfit("it has a lower precision, which exact excludes"), True
        if crashed := self._crashed.get(_key(served, name)):
            return unfit(crashed), True
        if served.too_small:
            return unfit(served.too_small), True
        if together == 0:
            return unfit("not enough memory is free to measure it"), False
        if count > together:  # not all can run at once: count as many as fit into the same threads
            count = config.count_of_threads(name)
        counts = {name: count, first: config.group(first).count}
        failed = CANNOT_START
        try:
            with ExitStack() as opened:
                predictors = {
                    side: [
                        opened.enter_context(closing(self.shadow_predictors.open(served, side)))
                        for _ in range(min(together, counts[side]))
                    ]
                    for side in counts
                }
                failed = "its runs failed: "
                exact = self.precision == "exact"
                candidate, final, verdict = _race(served, counts, predictors, exact=exact)
        except PaddlepoolError as error:
            final = self._final_failures.is_final(error, served, name)
            return unfit(f"{failed}{error.message}"), final
        except OSError as error:  # the system cannot start a process now
            return unfit(f"{CANNOT_START}{error.strerror or error}"), False
        if served.config.base_of(name) == first and verdict is not None:
            served.record_effect(name, Effect(verdict.effective, verdict.reason))
        return candidate, final

    def _room_for(self, served: ServedModel, name: str, search: _Search) -> int:
        """Return how many processes of `name`, and of the first group, memory allows at once.

        At most TOGETHER; 0 if there is not enough memory for one of each.
        """
        config = served.files.config
        first = config.default_group
        for status in served.groups():
            if status.name in (first, served.config.default_group) and status.live:
                held = status.resident_bytes / status.live
                search.process_bytes = max(search.process_bytes, held)
        counts = config.count_in_place(name), config.group(first).count
        free = self.free_bytes()
        for together in range(TOGETHER, 0, -1):
            processes = sum(min(together, count) for count in counts)
            if processes * ROOM * search.process_bytes <= free:
                return together
        return 0

    def _conclude(self, served: ServedModel, search: _Search) -> None:
        """Make the best candidate the default group, or else the first group; store the choice.

        Undecided candidates are measured again later. If there are some and no candidate is fit,
        the present default group stays until then, and nothing is stored. If the best candidate
        cannot start, marks it as unfit, so that the next call chooses another one.
        """
        config = served.files.config
        candidates = tuple(search.results.values())
        best = proof.best_of(candidates, config.lower_precision())
        first = config.default_group
        chosen = first if best is None else best.group
        reason = f"nothing is clearly faster than {first}" if best is None else best.reason
        if not candidates:
            reason = "there is no candidate"
        again = bool(search.undecided) and (best is None or search.rounds > 0)
        if best is None and again:
            group = served.config.default_group
            served.record_choice(
                Choice(group=group, by="start", reason=reason, candidates=candidates)
            )
            self._measure_again(search)
            return
        choice = Choice(
            group=chosen, by="measured", reason=reason, candidates=candidates, at=self.wall_clock()
        )
        if chosen == served.config.default_group:
            served.record_choice(choice)
        else:
            try:
                size = best.resident_bytes if best is not None else None
                needed = config.count_in_place(chosen) * (size or 0)
                if needed > (free := self.free_bytes()):
                    raise BackendError(
                        f"{needed / 1e6:.0f} MB are needed to open it, {free / 1e6:.0f} MB are free"
                    )
                if not self._adopt(served, choice):
                    return  # a reload replaced the version; the new one is next
            except ModelNotReady:
                return  # the server is shutting down
            except PaddlepoolError as error:
                why = f"cannot take over: {error.message}"
                if best is None:  # the group of an earlier version keeps serving
                    log.warning("%s@%d: %s %s", served.name, served.version, chosen, why)
                    self._measure_again(search)
                    return
                search.results[best.group] = replace(best, fit=False, reason=why)
                if not self._final_failures.is_final(error, served, best.group):
                    search.undecided.append(best.group)
                return
        self.store(served.files, choice)
        model = f"{served.name}@{served.version}"
        tried = (
            "; ".join(f"{candidate.group}: {candidate.reason}" for candidate in candidates)
            or "none"
        )
        log.info("%s: %s answers by default: %s. Candidates: %s", model, chosen, reason, tried)
        del self._searches[served]
        if again:
            self._measure_again(search)
            search.rounds -= 1
            for reopened in self.registry.served():
                if reopened.files is served.files:  # the same version with its new default group
                    self._searches[reopened] = search

    def _adopt(self, served: ServedModel, choice: Choice) -> bool:
        adopting = self.registry.adopt(served, choice)
        return asyncio.run_coroutine_threadsafe(adopting, self.loop).result()

    def _measure_again(self, search: _Search) -> None:
        search.waiting, search.undecided = search.undecided, []
        search.not_before = self.clock() + RETRY_SECONDS

    def _give_up_crashing(self, served: ServedModel) -> bool:
        """Return to the first group if the chosen one keeps crashing; False if nothing was done."""
        first, chosen = served.files.config.first_group, served.config.default_group
        states = {status.name: status.reason for status in served.groups()}
        state = states.get(chosen, "")
        if first is None or chosen == first or not state.startswith(CRASH_LOOP):
            return False
        why = f"{chosen} was the default group and kept crashing"
        self._crashed[_key(served, chosen)] = why
        log.error("%s@%d: %s; back to %s", served.name, served.version, why, first)
        try:
            self._adopt(served, first_choice(served.files.config, reason=why))
        except ModelNotReady:
            return False
        return True


def _key(served: ServedModel, group: str) -> tuple[str, str, str]:
    return served.name, served.manifest.sha256(), group


def _race(
    served: ServedModel,
    counts: Mapping[str, int],
    predictors: Mapping[str, Sequence[ShadowPredictor]],
    *,
    exact: bool,
) -> tuple[Candidate, bool, proof.Verdict | None]:
    """Run a candidate and the first group alternately on the same inputs; compare their times.

    `counts` has the number of processes of each group in service, the candidate's first. The time
    of a group is the mean over the processes that run at once, divided by its number in `counts`.
    Returns the candidate's result, whether it is final, and the verdict of judge(), None if it was
    not called.

    With `exact`, stops if the groups' outputs for the golden input differ by more than
    EXACT_DIFFERENCE. The stored golden output is no reference: it may have fewer digits. Raises the
    errors of ShadowPredictor.run().
    """
    group, first = counts
    own, base = predictors[group], predictors[first]
    golden = served.selftest
    outputs, base_outputs = (several[0].run(golden.inputs).outputs for several in (own, base))
    quality = golden.quality(outputs)
    candidate = Candidate(
        group=group, fit=False, reason="", resident_bytes=_largest(own), **asdict(quality)
    )
    difference = largest_difference(outputs, base_outputs)
    if exact and not difference <= EXACT_DIFFERENCE:
        reason = f"differs by {difference:.2g} from {first}; exact allows {EXACT_DIFFERENCE:.2g}"
        return replace(candidate, reason=reason), True, None

    def run_all(name: str, inputs: Tensors) -> proof.Timed:
        timed = run_together(predictors[name], inputs)
        if timed.seconds is None:
            return timed
        return replace(timed, seconds=timed.seconds / counts[name])

    inputs = served.warmups or (golden.inputs,)
    shapes = list({shape_key(tensors): tensors for tensors in inputs}.values())
    runs = proof.interleave(
        {name: partial(run_all, name) for name in counts},
        shapes,
        rounds=MAX_ROUNDS,
        enough=lambda runs: _enough(runs[group], runs[first]),
    )
    pairs = len(runs[group].seconds)
    candidate = replace(candidate, resident_bytes=_largest(own))
    if pairs == QUICK_PAIRS and _lost_every_pair(runs[group], runs[first]):
        slower = statistics.median(runs[group].seconds) / statistics.median(runs[first].seconds)
        reason = f"takes {slower:.2f} times as long as {first}"
        return replace(candidate, reason=reason, gain=1 / slower), True, None
    if pairs < MIN_PAIRS:
        reason = f"requests left time for only {pairs} of the required {MIN_PAIRS} pairs of runs"
        return replace(candidate, reason=reason), False, None
    verdict = proof.judge(runs[group], runs[first], base=first)
    gain, low, high = 1 / verdict.ratio, 1 / verdict.high, 1 / verdict.low
    agreement = "" if quality.agreement is None else f", agreement {quality.agreement:.3f}"
    noisy = "too noisy to tell: " if proof.undecided(low, high) else ""
    # The time of one predictor alone; unknown if every run was interrupted.
    alone = [own[0].run(shapes[0]).seconds for _ in range(ALONE_RUNS)]
    uninterrupted = [seconds for seconds in alone if seconds is not None]
    candidate = replace(
        candidate,
        fit=proof.clearly_faster(low),
        reason=f"{noisy}{gain:.2f} times the throughput of {first} "
        f"({low:.2f} to {high:.2f}, {pairs} pairs), mean difference "
        f"{quality.mean_difference:.2g}{agreement}, {_largest(own) / 1e6:.0f} MB a process",
        gain=gain,
        gain_low=low,
        gain_high=high,
        seconds=statistics.median(uninterrupted) if uninterrupted else None,
    )
    return candidate, not noisy, verdict


def _enough(own: proof.Runs, base: proof.Runs) -> bool:
    pairs = len(own.seconds)
    if pairs == QUICK_PAIRS:
        return _lost_every_pair(own, base)
    if pairs < MIN_PAIRS:
        return False
    _, low, high = proof.ratio_interval(base.seconds, own.seconds)
    decided = proof.clearly_faster(low) or not proof.clearly_faster(high)
    return pairs >= MAX_PAIRS or (decided and high / low < proof.HIDDEN_EFFECT)


def _lost_every_pair(own: proof.Runs, base: proof.Runs) -> bool:
    return all(a > b for a, b in zip(own.seconds, base.seconds, strict=True))


def _largest(predictors: Sequence[ShadowPredictor]) -> int:
    return max(predictor.predictor.resident_bytes() for predictor in predictors)
