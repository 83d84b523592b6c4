"""A race of a candidate and the first group: they take turns with the same inputs."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace

from app.contracts.status import Candidate
from app.contracts.tensors import Tensors, largest_difference, shape_key
from app.engine.registry.model import ServedModel
from app.evidence.live.shadow_predictor import ShadowPredictor, ShadowPredictors, run_together
from app.evidence.verdict.proof import (
    HIDDEN_EFFECT,
    MIN_PAIRS,
    Runner,
    Runs,
    Timed,
    Verdict,
    clearly_faster,
    interleave,
    judge,
    ratio_interval,
    undecided,
)

ALONE_RUNS = 5

QUICK_PAIRS = 3
"""A candidate that is slower in all of its first QUICK_PAIRS pairs is not measured further."""

MAX_PAIRS = 24
MAX_ROUNDS = 100
"""More than MAX_PAIRS, because pairs with an interrupted run do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceResult:
    """Result of a race. `decided` is False if the race should be run again."""

    candidate: Candidate
    decided: bool
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class Race:
    """Open predictors of both groups, by group; owned by one thread.

    `counts` are the numbers of processes that the groups have in service.
    """

    served: ServedModel
    group: str
    counts: Mapping[str, int]
    predictors: Mapping[str, Sequence[ShadowPredictor]]

    @property
    def first(self) -> str:
        return self.served.files.config.default_group

    def run(self, *, most_difference: float) -> RaceResult:
        """Run the race, unless the candidate's outputs differ by more than `most_difference`.

        Both groups' outputs for the golden input are compared. The stored golden output is not the
        reference, because it may have fewer digits.
        """
        golden = self.served.selftest
        outputs, base_outputs = (
            self.predictors[name][0].run(golden.inputs).outputs for name in (self.group, self.first)
        )
        quality = golden.quality(outputs)
        unfit = Candidate(
            group=self.group,
            fit=False,
            reason="",
            resident_bytes=self._resident_bytes(),
            **asdict(quality),
        )
        difference = largest_difference(outputs, base_outputs)
        if not difference <= most_difference:
            reason = (
                f"differs by {difference:.2g} from {self.first}; exact allows {most_difference:.2g}"
            )
            return RaceResult(candidate=replace(unfit, reason=reason), decided=True)
        runners = {name: self._runner(name) for name in (self.group, self.first)}
        runs = interleave(runners, _shapes(self.served), rounds=MAX_ROUNDS, enough=self._enough)
        own, theirs = runs[self.group], runs[self.first]
        pairs = len(own.seconds)
        unfit = replace(unfit, resident_bytes=self._resident_bytes())
        if pairs == QUICK_PAIRS and _lost_every_pair(own, theirs):
            slower = statistics.median(own.seconds) / statistics.median(theirs.seconds)
            reason = f"takes {slower:.2f} times as long as {self.first}"
            return RaceResult(
                candidate=replace(unfit, reason=reason, gain=1 / slower), decided=True
            )
        if pairs < MIN_PAIRS:
            reason = (
                f"requests left time for only {pairs} of the required {MIN_PAIRS} pairs of runs"
            )
            return RaceResult(candidate=replace(unfit, reason=reason), decided=False)
        verdict = judge(own, theirs, base=self.first)
        gain, low, high = 1 / verdict.ratio, 1 / verdict.high, 1 / verdict.low
        agreement = "" if quality.agreement is None else f", agreement {quality.agreement:.3f}"
        noisy = "too noisy to tell: " if undecided(low, high) else ""
        reason = (
            f"{noisy}{gain:.2f} times the throughput of {self.first} "
            f"({low:.2f} to {high:.2f}, {pairs} pairs), mean difference "
            f"{quality.mean_difference:.2g}{agreement}, "
            f"{self._resident_bytes() / 1e6:.0f} MB a process"
        )
        candidate = replace(
            unfit,
            fit=clearly_faster(low),
            reason=reason,
            gain=gain,
            gain_low=low,
            gain_high=high,
            seconds=self._seconds_alone(),
        )
        return RaceResult(candidate=candidate, decided=not noisy, verdict=verdict)

    def _seconds_alone(self) -> float | None:
        """Median seconds of a run of one predictor alone; None if every run was interrupted."""
        inputs = _shapes(self.served)[0]
        ran = [self.predictors[self.group][0].run(inputs).seconds for _ in range(ALONE_RUNS)]
        seconds = [each for each in ran if each is not None]
        return statistics.median(seconds) if seconds else None

    def _runner(self, group: str) -> Runner:
        """Build a function that runs all predictors of `group` at once.

        It divides their mean time by the number of processes that the group has in service.
        """

        def run(inputs: Tensors) -> Timed:
            timed = run_together(self.predictors[group], inputs)
            if timed.seconds is None:
                return timed
            return replace(timed, seconds=timed.seconds / self.counts[group])

        return run

    def _enough(self, runs: Mapping[str, Runs]) -> bool:
        own, theirs = runs[self.group], runs[self.first]
        pairs = len(own.seconds)
        if pairs == QUICK_PAIRS:
            return _lost_every_pair(own, theirs)
        if pairs < MIN_PAIRS:
            return False
        _, low, high = ratio_interval(theirs.seconds, own.seconds)
        sharp = high / low < HIDDEN_EFFECT and (clearly_faster(low) or not clearly_faster(high))
        return sharp or pairs >= MAX_PAIRS

    def _resident_bytes(self) -> int:
        return max(each.resident_bytes() for each in self.predictors[self.group])


@contextmanager
def open_race(
    shadow_predictors: ShadowPredictors, served: ServedModel, group: str, *, together: int
) -> Iterator[Race]:
    """Open at most `together` predictors of each group, and close them at the end of the block.

    This and Race.run() raise Closed, and the same errors as ServedModel.open_shadow.
    """
    config = served.files.config
    count = config.count_in_place(group)
    if count > together:  # not all can run at once: count those with a core per thread
        count = config.count_of_threads(group)
    counts = {group: count, config.default_group: config.group(config.default_group).count}
    with ExitStack() as opened:
        predictors = {
            name: [
                opened.enter_context(closing(shadow_predictors.open(served, name)))
                for _ in range(min(together, counts[name]))
            ]
            for name in counts
        }
        yield Race(served, group, counts, predictors)


def _lost_every_pair(own: Runs, theirs: Runs) -> bool:
    return all(a > b for a, b in zip(own.seconds, theirs.seconds, strict=True))


def _shapes(served: ServedModel) -> Sequence[Tensors]:
    inputs = served.warmups or (served.selftest.inputs,)
    return list({shape_key(each): each for each in inputs}.values())
