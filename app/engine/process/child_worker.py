"""The part of a Worker that every child process provides in the same way."""

from app.contracts.reasons import Restart
from app.engine.process.child import Child, ChildDied


class ChildWorker:
    """A child process behind the port `app.contracts.ports.Worker`; subclasses add the requests."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._failure: Restart | None = None

    @property
    def pid(self) -> int:
        return self._child.pid

    def fileno(self) -> int:
        return self._child.fileno()

    def check_timeout(self) -> float:
        try:
            return self._child.check_timeout()
        except ChildDied as died:
            raise self._blamed(died) from None

    def _blamed(self, died: ChildDied) -> Exception:
        """Note why the process died; return the error that the call under way raises."""
        raise NotImplementedError

    def failure(self) -> Restart | None:
        return self._failure or self._child.failure()

    def resident_bytes(self) -> int:
        return self._child.resident_bytes()

    def abort(self) -> None:
        self._child.kill()

    def close(self) -> None:
        self._child.close()
