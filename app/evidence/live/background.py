"""The one thread that compares instance groups while no request is being answered."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.contracts.ports import AgreementOf, Clock, PredictorFactory
from app.contracts.status import Choice
from app.contracts.tensors import Tensors
from app.engine.process.suspension import Suspension
from app.engine.registry.model import ServedModel
from app.engine.registry.registry import ModelRegistry
from app.evidence.live.chooser import Chooser, Choosing, Precision
from app.evidence.live.prover import Prover, Which
from app.evidence.live.shadow import Shadow
from app.evidence.live.shadow_predictor import Closed, IdleGate, ShadowPredictors
from app.models.repository.layout import ModelFiles
from app.observability.metrics import Metrics

POLL_SECONDS = 1.0

START_SECONDS = 10.0
"""No group is measured in the server's first seconds, which belong to its first requests."""

AFTER_FAILURE_SECONDS = 60.0
"""Pause after a failure, such as a system that cannot start another process."""

CLOSING_SECONDS = 1.0

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Background:
    """The background thread, and the TrafficListener that makes it pause during requests.

    began(), ended() and answered() are called from the event loop.
    """

    idle_gate: IdleGate
    shadow: Shadow
    prover: Prover
    chooser: Chooser
    clock: Clock = time.monotonic
    start_seconds: float = START_SECONDS

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._live, name="background", daemon=True)

    def start(self) -> None:
        """Start the thread; called from the event loop."""
        self.chooser.loop = asyncio.get_running_loop()
        self._thread.start()

    def began(self) -> None:
        self.idle_gate.began()

    def ended(self) -> None:
        self.idle_gate.ended()

    def answered(
        self, served: ServedModel, group: str, jobs: Sequence[Tensors], outputs: Sequence[Tensors]
    ) -> None:
        if self.shadow.offer(served, group, jobs, outputs):
            self.idle_gate.wake()

    def _live(self) -> None:
        prove_from = self.clock() + self.start_seconds
        with contextlib.suppress(Closed):
            while True:
                self.idle_gate.rest(POLL_SECONDS, unless=self.shadow.waiting)
                self.idle_gate.wait()
                try:
                    while self.shadow.replay_one() or (
                        self.clock() >= prove_from
                        and (self.chooser.choose_one() or self.prover.prove_one())
                    ):
                        self.idle_gate.wait()
                except Closed:
                    raise
                except Exception:
                    log.exception("comparing groups beside the service failed")
                    self.idle_gate.rest(AFTER_FAILURE_SECONDS, unless=lambda: False)
        self.shadow.close()

    def close(self) -> None:
        """End the thread without waiting for a run in progress; that ends with the process."""
        self.idle_gate.close()
        if self._thread.ident is not None:
            self._thread.join(CLOSING_SECONDS)


def open_background(
    registry: ModelRegistry,
    *,
    backend: Callable[[Suspension], PredictorFactory],
    observer: Metrics,
    agreement_of: AgreementOf,
    prove: Which,
    fraction: float,
    groups: Sequence[str],
    max_predictors: int,
    precision: Precision,
    keep: Callable[[ModelFiles, Choice], None],
) -> Background | None:
    """Return one thread for Shadow, Prover and Chooser, not yet started; None if all are off.

    With `prove` off, default groups are not chosen either.
    """
    if prove == "off" and not fraction:
        return None
    suspension = Suspension()
    idle_gate = IdleGate(suspension)
    predictors = ShadowPredictors(open_predictor=backend(suspension), idle_gate=idle_gate)
    shadow = Shadow(
        registry,
        predictors,
        fraction=fraction,
        groups=groups,
        max_predictors=max_predictors,
        observer=observer,
        agreement_of=agreement_of,
    )
    which: Choosing = "off" if prove == "off" else precision
    return Background(
        idle_gate,
        shadow=shadow,
        prover=Prover(registry, predictors, which=prove),
        chooser=Chooser(registry, predictors, precision=which, keep=keep),
    )
