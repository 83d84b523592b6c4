"""The outcome of each attempt to load a version; the source of the repository index."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping

from paddlepool.contracts.errors import PaddlepoolError
from paddlepool.contracts.status import ModelStatus, State
from paddlepool.engine.registry.composed import ComposedModel
from paddlepool.engine.registry.model import ServedModel

NOT_LOADED = "not loaded"
SERVES_ON = "serves on; loading it again failed"
UNSEALED = "it has no manifest.json: `paddlepool models seal` writes it"

log = logging.getLogger(__name__)

Key = tuple[str, int | None]
"""Name and version; None means the model as a whole, before its versions are chosen."""


class LoadHistory:
    """Remembers for each version whether it is being loaded and why loading it last failed.

    If a model as a whole cannot be loaded, that reason applies to each of its versions. Belongs to
    the event loop; index(), knows() and failed_models() may be called in any thread.
    """

    def __init__(self) -> None:
        self._loading: set[Key] = set()
        self._failures: dict[Key, str] = {}
        self._considered: dict[str, frozenset[int]] = {}

    @contextlib.contextmanager
    def attempt(self, name: str, version: int | None, *, serves: bool = False) -> Iterator[None]:
        """Mark a version as LOADING during the block; store the reason if the block raises.

        A PaddlepoolError is also logged; `serves` says that the version serves now, and continues
        to serve if the block raises. The reason of an earlier failure is forgotten at the end.
        """
        key = (name, version)
        self._loading.add(key)
        reason = ""
        try:
            yield
        except PaddlepoolError as error:
            reason = error.message
            log.error("%s: %s: %s", name, _outcome(version, serves), reason)
            raise
        except OSError as error:
            reason = f"{error.strerror or 'the system refused'}: see the log"  # not the path
            raise
        except BaseException:
            reason = "internal error, see the log"
            raise
        finally:
            self._loading.discard(key)
            self._failures.pop(key, None)
            if reason:
                self._failures[key] = reason

    def failed(self, name: str) -> frozenset[int | None]:
        """Return the versions of this model that failed when last loaded; None stands for all."""
        return frozenset(version for model, version in self._failures if model == name)

    def failed_models(self) -> frozenset[str]:
        """Return the models that failed, or of which a version failed, when last loaded."""
        return frozenset(name for name, _ in dict(self._failures))

    def knows(self, name: str, version: int | None) -> bool:
        """Whether this version (any version if None) is being loaded or failed when last loaded."""
        known = {*self._loading, *self._failures}
        as_a_whole = (name, None) in self._failures and version in self._considered.get(name, ())
        return as_a_whole or any(key[0] == name and version in (None, key[1]) for key in known)

    def consider(self, name: str, versions: Iterable[int]) -> None:
        """Set the versions to which a whole model's failure applies; forget failures of others."""
        considered = self._considered[name] = frozenset(versions)
        for key in [key for key in self._failures if key[0] == name]:
            if key[1] is not None and key[1] not in considered:
                del self._failures[key]

    def forget(self, name: str) -> None:
        """Forget all failures of a model that is gone or was unloaded."""
        self.consider(name, ())
        self._failures.pop((name, None), None)
        del self._considered[name]

    def index(
        self,
        serving: Iterable[ServedModel | ComposedModel],
        published: Mapping[str, Iterable[int]],
        unsealed: Mapping[str, Iterable[int]],
    ) -> tuple[ModelStatus, ...]:
        """Return one row for each version on disk or in memory, by name, newest version first.

        A model without versions has one row with version None, if it is being loaded or could not
        be loaded. `published` and `unsealed` are the versions on disk with and without a manifest,
        by model.
        """
        without: set[Key] = {(name, number) for name in unsealed for number in unsealed[name]}
        loading = set(self._loading)
        failures = dict(self._failures)
        served: dict[Key, ServedModel | ComposedModel] = {
            (model.name, model.version): model for model in serving
        }
        on_disk: set[Key] = {(name, number) for name in published for number in published[name]}
        rows = {*served, *loading, *failures, *on_disk, *without}
        numbered = {name for name, version in rows if version is not None}
        # A failure of the whole model is the newest: no version has been tried after it.
        reasons = {key: failures.get((key[0], None)) or failures.get(key) for key in rows}
        reasons |= dict.fromkeys(without, UNSEALED)
        return tuple(
            _status(key, served.get(key), key in loading, reasons[key])
            for key in sorted(rows, key=lambda key: (key[0], -(key[1] or 0)))
            if key[1] is not None or key[0] not in numbered
        )


def _outcome(version: int | None, serves: bool) -> str:
    if serves:
        return SERVES_ON if version is None else f"version {version} {SERVES_ON}"
    return "no version is loaded" if version is None else f"version {version} is not served"


def _status(
    key: Key, model: ServedModel | ComposedModel | None, loading: bool, failure: str | None
) -> ModelStatus:
    state: State = "UNAVAILABLE"
    if model is None:
        state, reason = ("LOADING", "") if loading else (state, failure or NOT_LOADED)
    elif not model.ready():
        reason = "its predictors are not running"
    else:
        state = "READY"
        reason = f"{SERVES_ON}: {failure}" if failure else ""
    return ModelStatus(name=key[0], version=key[1], state=state, reason=reason)
