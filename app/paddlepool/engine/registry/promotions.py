"""Which version of a model serves, and the trials of newer ones; stored for the next start."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from paddlepool.contracts.status import UNFINISHED, Trial, TrialEvidence, VersionSet
from paddlepool.models.repository.state_file import StateFile, state_path

MAX_TRIALS = 8
"""Trials of one model that are remembered."""


def promotions_path(state_file: Path | None) -> Path | None:
    """Return the file of Promotions, beside that of state_path(); None if nothing is stored."""
    path = state_path(state_file)
    return None if path is None else path.with_suffix(".canaries.json")


class Serving(BaseModel):
    """The version of a model that serves, and the `previous` one, which a promotion has replaced.

    `sha256` is the fingerprint of the version's files; empty if it is unknown, or the model is
    composed. `at` is the time of the last decision, in seconds since 1970; 0 before the first.
    `parts` and `previous_parts` are the versions of the parts of a composed model, by model.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    version: int
    sha256: str = ""
    previous: int | None = None
    at: float = 0.0
    parts: dict[str, int] = {}
    previous_parts: dict[str, int] = {}

    @property
    def version_set(self) -> VersionSet:
        return VersionSet(self.version, self.parts)

    @property
    def previous_set(self) -> VersionSet | None:
        return None if self.previous is None else VersionSet(self.previous, self.previous_parts)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: Literal[1]
    serving: tuple[Serving, ...]
    trials: tuple[Trial, ...]


class Promotions:
    """The versions that serve, by model, and the latest MAX_TRIALS trials of each. Thread-safe.

    Changes are written to the file at `path`; with None, or if that fails, they stay in memory.
    Servers may share a file: the latest decision about a model or a trial counts for all of them.
    With `follows`, this server judges no trial and also takes the evidence of the one that does. At
    the start, an unfinished trial of a version that serves becomes a promoted one.
    """

    def __init__(self, path: Path | None = None, *, follows: bool = False) -> None:
        self._file = StateFile(path, _File)
        self._follows = follows
        self._changed: set[str] = set()
        self._written = True
        self._lock = threading.RLock()
        self._serving: dict[str, Serving] = {}
        self._trials: list[Trial] = []
        self.refresh()
        for trial in tuple(self._trials):
            serving = self._serving.get(trial.model)
            if serving is None or trial.state not in UNFINISHED:
                continue
            same_files = serving.sha256 in ("", trial.sha256)
            if same_files and serving.version_set == trial.version_set:
                # A server was killed after it had recorded the promotion.
                self._replace(replace(trial, state="promoted", reason="promoted before a restart"))

    def refresh(self) -> frozenset[str]:
        """Read what other servers have decided; return the models changed since the last call.

        If the last write has failed, as on a full disk, writes again.
        """
        with self._lock:
            self._merge()
            if not self._written:
                self._write()
            changed, self._changed = frozenset(self._changed), set()
            return changed

    def _merge(self) -> bool:
        """Read what other servers have decided; return whether that changes anything."""
        document = self._file.read() if self._file.changed() else None
        if document is None:
            return False
        changed = set()
        for serving in document.serving:
            own = self._serving.get(serving.model)
            if own is None or serving.at > own.at:
                self._serving = {**self._serving, serving.model: serving}
                changed.add(serving.model)
        for trial in document.trials:
            known = self.trial(trial.model, trial.version, trial.sha256)
            later = known is None or (trial.at or 0) > (known.at or 0)
            if later or (self._follows and known is not None and trial.at == known.at):
                self._replace(trial)
                changed.add(trial.model)
        self._changed |= changed
        return bool(changed)

    def serving(self, model: str) -> Serving | None:
        """Return the recorded version, which serves until another one is promoted, or None."""
        return self._serving.get(model)

    def whole_of(self, model: str) -> str | None:
        """Return the composed model with which a part is judged, or None."""
        return next((row.model for row in self._serving.values() if model in row.parts), None)

    def serve(self, model: str, serving: Serving | None) -> None:
        """Record and write which version of a model serves; None forgets it."""
        with self._lock:
            self._merge()
            others = {name: row for name, row in self._serving.items() if name != model}
            self._serving = others if serving is None else {**others, model: serving}
            self._write()

    def trial(self, model: str, version: int, sha256: str) -> Trial | None:
        """Return the trial of this version with this fingerprint (see Trial), or None."""
        trials = [trial for trial in self.trials(model) if trial.version == version]
        return next((trial for trial in trials if trial.sha256 == sha256), None)

    def trials(self, model: str) -> list[Trial]:
        """Return the trials of a model, the latest one first."""
        return [trial for trial in reversed(self._trials) if trial.model == model]

    def put(self, trial: Trial) -> None:
        """Store and write a trial, in place of one of the same version and fingerprint."""
        with self._lock:
            self._merge()
            self._replace(trial)
            self._write()

    def record(self, trial: Trial, evidence: TrialEvidence, *, write: bool) -> None:
        """Store new evidence of a trial, unless it was decided or forgotten meanwhile.

        With `write`, also writes the file, unless other servers have just changed something.
        """
        with self._lock:
            stored = self.trial(trial.model, trial.version, trial.sha256)
            if stored is not None and stored.state == "testing":
                self._replace(replace(stored, evidence=evidence))
                if write and not self._merge():
                    self._write()

    def _replace(self, trial: Trial) -> None:
        own = [row for row in self._trials if row.model == trial.model]
        own = [row for row in own if (row.version, row.sha256) != (trial.version, trial.sha256)]
        others = [row for row in self._trials if row.model != trial.model]
        self._trials = [*others, *own[1 - MAX_TRIALS :], trial]

    def reason(self, model: str, version: int | None) -> str:
        """Return a version's trial as the reason why it is not served; "" if none or promoted.

        The trial of a part is that of the composed model.
        """
        for trial in reversed(self._trials):
            own = trial.model == model and trial.version == version
            new = trial.parts.get(model) == version != trial.current_parts.get(model)
            if (own or new) and trial.state != "promoted":
                label = "canary" if own else f"canary of {trial.model}"
                return f"{label}: {trial.state}{f': {trial.reason}' if trial.reason else ''}"
        return ""

    def _write(self) -> None:
        serving, trials = tuple(self._serving.values()), tuple(self._trials)
        self._written = self._file.write(_File(format=1, serving=serving, trials=trials))
        self._file.changed()  # what it has just written is known
