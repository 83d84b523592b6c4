"""Replays answered requests on other groups in idle moments: measures time, drift, agreement."""

import logging
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from app.contracts.errors import PaddlepoolError
from app.contracts.ports import AgreementOf
from app.contracts.reasons import ShadowOutcome
from app.contracts.tensors import Tensors, largest_difference
from app.engine.registry.model import ServedModel
from app.engine.registry.registry import ModelRegistry
from app.evidence.live.shadow_predictor import FinalFailures, ShadowPredictor, ShadowPredictors
from app.models.repository.config import ModelConfig
from app.observability.metrics import Metrics

MAX_RESIDENT_BYTES = 2 << 30
"""A shadow predictor that uses more memory is closed; the next replay opens a new one."""

log = logging.getLogger(__name__)

Key = tuple[ServedModel, str]


@dataclass(slots=True, eq=False)
class Shadow:
    """Samples answered jobs and replays them on other groups.

    offer() is called from the event loop, replay_one() from the thread that owns the predictors. At
    most one job per model waits. At most `max_predictors` predictors are open; before another is
    opened, the least recently used one is closed.
    """

    registry: ModelRegistry
    shadow_predictors: ShadowPredictors
    fraction: float
    groups: Sequence[str]
    max_predictors: int
    observer: Metrics
    agreement_of: AgreementOf
    draw: Callable[[], float] = random.random
    _waiting: dict[str, tuple[ServedModel, Tensors, Tensors]] = field(
        default_factory=dict, init=False
    )
    _open: dict[Key, ShadowPredictor] = field(default_factory=dict, init=False)
    _final_failures: FinalFailures = field(default_factory=FinalFailures, init=False)
    _refused: set[Key] = field(default_factory=set, init=False)

    def offer(
        self, served: ServedModel, group: str, jobs: Sequence[Tensors], outputs: Sequence[Tensors]
    ) -> bool:
        """Keep one job of a request for a replay; False if it is not kept.

        A request that the default group answered is kept with the probability `fraction`, unless
        another job of its model waits.
        """
        if group != served.config.default_group or self.draw() >= self.fraction:
            return False
        if served.name in self._waiting:
            self.observer.shadowed(model=served.name, outcome=ShadowOutcome.DROPPED)
            return False
        chosen = int(self.draw() * len(jobs))
        self._waiting[served.name] = (served, jobs[chosen], outputs[chosen])
        return True

    def waiting(self) -> bool:
        return bool(self._waiting)

    def replay_one(self) -> bool:
        """Replay the longest-waiting job on other groups; False if none waits. Raises Closed."""
        waiting = list(self._waiting.values())  # atomic: offer() may add to it meanwhile
        if not waiting:
            return False
        served, inputs, expected = waiting[0]
        models, outcome = self.registry.served(), ShadowOutcome.FAILED
        for gone in [key for key in self._open if key[0] not in models]:
            self._open.pop(gone).close()
        self._refused = {key for key in self._refused if key[0] in models}
        try:
            groups = self._groups_of(served) if served in models else []
            done = [self._replay(served, each, inputs, expected) for each in groups]
            if all(done):  # a failure does not stop the other groups' replays
                outcome = ShadowOutcome.REPLAYED if groups else ShadowOutcome.DROPPED
        finally:
            del self._waiting[served.name]
            self.observer.shadowed(model=served.name, outcome=outcome)
        return True

    def _groups_of(self, served: ServedModel) -> list[str]:
        """The groups to replay on: those of `groups`, or else all that are ready."""
        return [
            each.name
            for each in served.groups()
            if each.name != served.config.default_group
            and (each.name in self.groups if self.groups else each.ready)
            and (served, each.name) not in self._refused
        ]

    def _replay(self, served: ServedModel, group: str, inputs: Tensors, expected: Tensors) -> bool:
        key, keep = (served, group), False
        try:
            shadow = self._open.pop(key, None)
            if shadow is None:
                if len(self._open) == self.max_predictors:
                    self._open.pop(next(iter(self._open))).close()
                shadow = self.shadow_predictors.open(served, group)
        except PaddlepoolError as error:
            if self._final_failures.is_final(error, served, group):
                self._refused.add(key)
            log.warning("%s %s: cannot be shadowed: %s", served.name, group, error.message)
            return False
        try:
            timed = shadow.run(inputs)
            keep = shadow.predictor.resident_bytes() <= MAX_RESIDENT_BYTES
        except PaddlepoolError as error:
            log.warning("%s %s: a replay failed: %s", served.name, group, error.message)
            return False
        finally:
            if keep:
                self._open[key] = shadow
            else:
                shadow.close()
        if timed.seconds is not None:
            # Without a batch axis, clients choose the first size. It must not become the label
            # `rows`, because the number of its values would have no limit.
            rows = len(next(iter(inputs.values()))) if served.batched else 1
            self.observer.batch_done(
                model=served.name,
                version=served.version,
                group=group,
                rows=rows,
                seconds=timed.seconds,
            )
        agreement = self.agreement_of(served.info)
        self.observer.drifted(
            model=served.name,
            group=group,
            drift=largest_difference(timed.outputs, expected),
            agreement=None if agreement is None else agreement(timed.outputs, expected),
        )
        return True

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


def warn_of_unknown_groups(names: Collection[str], configs: Iterable[ModelConfig]) -> None:
    """Warn of each name that no model has as a group that requests can be replayed on.

    The name is a typo, or its model is not published yet.
    """
    known = {
        group.name
        for config in configs
        for group in config.instance_group
        if group.name != config.default_group or config.first_group is not None
    }
    for name in names:
        if name not in known:
            log.warning(
                "PADDLEPOOL_SHADOW_GROUPS: no model has an instance group %r besides its default "
                "one yet",
                name,
            )
