"""The one thread that compares groups while the server has nothing better to do."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence

from app.engine.model import ServedModel
from app.engine.ports import Clock
from app.engine.tensors import Tensors
from app.live.prover import Prover
from app.live.quiet import Closed, Quiet
from app.live.shadow import Shadow

LOOK_SECONDS = 1.0
"""How often it looks whether a model was loaded or a group started."""

START_SECONDS = 10.0
"""A server that has just started has better things to do than to prove its groups."""

AFTER_FAILURE_SECONDS = 60.0
"""What failed unforeseen, such as a system without room for a process, is not tried in a loop."""

CLOSING_SECONDS = 1.0

log = logging.getLogger(__name__)


class Background:
    """A bystander of the data plane: began(), ended() and answered() come from the event loop."""

    def __init__(
        self,
        quiet: Quiet,
        *,
        shadow: Shadow,
        prover: Prover,
        clock: Clock = time.monotonic,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._quiet = quiet
        self._clock = clock
        self._start_seconds = start_seconds
        self._shadow = shadow
        self._prover = prover
        self._thread = threading.Thread(target=self._live, name="background", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def began(self) -> None:
        self._quiet.began()

    def ended(self) -> None:
        self._quiet.ended()

    def answered(
        self, served: ServedModel, group: str, jobs: Sequence[Tensors], outputs: Sequence[Tensors]
    ) -> None:
        if self._shadow.offer(served, group, jobs, outputs):
            self._quiet.wake()

    def _live(self) -> None:
        prove_from = self._clock() + self._start_seconds
        with contextlib.suppress(Closed):
            while True:
                self._quiet.rest(LOOK_SECONDS, unless=self._shadow.waiting)
                self._quiet.wait()
                try:
                    while self._shadow.replay_one() or (
                        self._clock() >= prove_from and self._prover.prove_one()
                    ):
                        self._quiet.wait()
                except Closed:
                    raise
                except Exception:
                    log.exception("comparing groups beside the service failed")
                    self._quiet.rest(AFTER_FAILURE_SECONDS, unless=lambda: False)
        self._shadow.close()

    def alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """End the thread; a run it is in is left to end with the process."""
        self._quiet.close()
        if self._thread.ident is not None:
            self._thread.join(CLOSING_SECONDS)
