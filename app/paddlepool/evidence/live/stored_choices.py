"""Stores the chosen default groups in a file, so that the next start on this machine uses them."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from paddlepool.contracts.status import Candidate, Choice
from paddlepool.engine.registry.model import UNDECIDED
from paddlepool.models.repository.layout import ModelFiles
from paddlepool.models.repository.state_file import StateFile, state_path

MAX_CHOICES = 64

log = logging.getLogger(__name__)


class _Entry(BaseModel):
    """A stored choice and everything that it depends on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    version: int
    sha256: str
    config: str
    precision: str
    machine: dict[str, str]
    group: str
    reason: str
    candidates: tuple[Candidate, ...]
    at: float | None = None

    def same_version(self, other: _Entry) -> bool:
        own = self.model, self.version, self.sha256
        return own == (other.model, other.version, other.sha256)

    def differences(self, other: _Entry) -> list[str]:
        first, second = (
            {"config": entry.config, "precision": entry.precision, **entry.machine}
            for entry in (self, other)
        )
        return [key for key in first | second if first.get(key) != second.get(key)]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: Literal[1]
    choices: tuple[_Entry, ...]


class StoredChoices:
    """Choices in a file; thread-safe.

    `file` is OFF or a path; None means a path in the user's home. With OFF or without a usable
    file, choices stay in memory only.
    """

    def __init__(self, file: Path | None, *, precision: str, machine: Mapping[str, str]) -> None:
        self._file = StateFile(state_path(file), _File)
        self._precision = precision
        self._machine = dict(machine)
        self._lock = threading.Lock()
        self._entries = self._read()

    def get(self, files: ModelFiles) -> Choice | None:
        """Return the choice with which this version starts, or None.

        A stored choice is valid if it was made with the present configuration, precision and
        machine, and its group still exists. Returns the last valid choice for this version. If the
        version has only invalid ones, returns None and logs what differs from the last of them.

        If the version has no choice, returns the group of the last valid choice for another version
        of the model, for a start until the candidates are measured. With the precision "exact",
        returns None instead: how much a group's output differs from the first group's depends on
        the weights.
        """
        expected = self._entry(files, Choice(group="", by="kept", reason=""))
        groups = {group.name for group in files.config.instance_group}
        with self._lock:
            of_model = [entry for entry in self._entries if entry.model == files.name]
        of_version = [entry for entry in of_model if entry.same_version(expected)]
        usable = [
            entry for entry in of_model if not entry.differences(expected) and entry.group in groups
        ]
        for entry in reversed(usable):
            if entry in of_version:
                return Choice(
                    group=entry.group,
                    by="kept",
                    reason=entry.reason,
                    candidates=entry.candidates,
                    at=entry.at,
                )
        if of_version:
            log.info(
                "%s@%d: its default group is chosen again: it was chosen with another %s",
                files.name,
                files.version,
                ", ".join(of_version[-1].differences(expected)) or "set of groups",
            )
        elif usable and self._precision != "exact":
            before = usable[-1]
            reason = f"version {before.version} was served by it; {UNDECIDED}"
            return Choice(group=before.group, by="start", reason=reason)
        return None

    def store(self, files: ModelFiles, choice: Choice) -> None:
        new = self._entry(files, choice)
        with self._lock:
            in_file = self._read()  # servers may share a file
            known = [*(entry for entry in in_file if entry not in self._entries), *self._entries]
            others = [
                entry for entry in known if not entry.same_version(new) or entry.differences(new)
            ]
            self._entries = [*others[1 - MAX_CHOICES :], new]
            self._file.write(_File(format=1, choices=tuple(self._entries)))

    def _entry(self, files: ModelFiles, choice: Choice) -> _Entry:
        groups = files.config.model_dump_json(
            include={"default_group", "instance_group", "warmup", "dynamic_batching"}
        )
        return _Entry(
            model=files.name,
            version=files.version,
            sha256=files.manifest.sha256(),
            config=hashlib.sha256(groups.encode()).hexdigest()[:16],
            precision=self._precision,
            machine=self._machine,
            group=choice.group,
            reason=choice.reason,
            candidates=choice.candidates,
            at=choice.at,
        )

    def _read(self) -> list[_Entry]:
        document = self._file.read()
        return [] if document is None else list(document.choices)
