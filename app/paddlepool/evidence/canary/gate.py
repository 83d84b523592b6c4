"""Measures a new version on labelled data, in a process of its own that runs in idle moments."""

import json
import operator
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from paddlepool.contracts.sentences import sentence
from paddlepool.engine.process.suspension import Suspension
from paddlepool.engine.process.worker import end_with_parent
from paddlepool.models.repository.config import QUALITY

COMPARE = {">=": operator.ge, "<=": operator.le}
WORDS = re.compile(r"\W+")


def command_of(name: str, *, repository: Path, data: Path | None) -> list[str]:
    """Return the command that measures the newest version of a model, without `--json FILE`."""
    command = [sys.executable, "-P", "-m", "paddlepool.cli", "models", "verify", name, "--quality"]
    command += ["--repository", str(repository)]
    return command if data is None else [*command, "--data", str(data)]


class QualityGate:
    """A running measurement of quality. Its command is stopped while a request is answered.

    The predictor that the command has started is not stopped: it ends its run, then waits for the
    command. The command ends with the server, even if the server is killed.
    """

    def __init__(self, command: Sequence[str], suspension: Suspension) -> None:
        """Start the command. Raises OSError."""
        self._suspension = suspension
        self._directory = tempfile.TemporaryDirectory()
        self._figures = Path(self._directory.name) / "figures.json"
        self._text = Path(self._directory.name) / "text"
        lifeline, end = os.pipe()
        self._lifeline = os.fdopen(end, "wb")
        with os.fdopen(lifeline, "rb") as standard_input, self._text.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "--json", str(self._figures)],
                stdin=standard_input,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            end_with_parent(self._process.pid, lifeline)
        with suppress(OSError):  # it has ended already
            os.sched_setscheduler(self._process.pid, os.SCHED_IDLE, os.sched_param(0))
        suspension.add(self._process)

    def fault(self, conditions: Sequence[str]) -> str | None:
        """Return why the version fails a condition, "" if it meets all, None while measuring.

        A measurement that failed is a fault, too. Closes this object if the measurement has ended.
        """
        if self._process.poll() is None:
            return None
        try:
            [report] = json.loads(self._figures.read_bytes()).values()
        except (OSError, ValueError):
            lines = self._text.read_text("utf-8", "replace").strip().splitlines()
            return f"its quality cannot be measured: {sentence(lines[-1] if lines else '')}"
        finally:
            self.close()
        return fault_of(report["figures"], conditions)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._lifeline.close()
        self._suspension.discard(self._process)
        self._directory.cleanup()


def fault_of(figures: Mapping[str, Mapping[str, Any]], conditions: Sequence[str]) -> str:
    """Return a sentence about the first condition that is not fulfilled; "" if all are.

    Every figure of the condition's name must fulfil it, and there must be one.
    """
    values: dict[str, list[float]] = {}
    for rows in figures.values():
        for row in rows.values():
            for column, value in row.items():
                if isinstance(value, int | float):
                    values.setdefault(WORDS.sub("_", column.lower()), []).append(value)
    for condition in conditions:
        name, sign, limit = QUALITY.fullmatch(condition).groups()  # type: ignore[union-attr]
        if name not in values:
            return f"quality: no figure is named {name}; there are {', '.join(sorted(values))}"
        for value in values[name]:
            if not COMPARE[sign](value, float(limit)):
                return f"quality: {name} is {value:.4g}, the condition is {condition}"
    return ""
