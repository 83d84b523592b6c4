"""Conditions on the quality of a new version, measured by a command beside the server."""

import errno
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from paddlepool.engine.process.suspension import Suspension
from paddlepool.evidence.canary.gate import QualityGate, command_of, fault_of
from paddlepool.evidence.canary.judge import RETRY_SECONDS
from tests.engine.fakes import eventually
from tests.evidence.canary.conftest import POLICY, Bench

FIGURES: dict[str, dict[str, dict[str, object]]] = {
    "eval": {
        "usual": {"texts": 9, "macro-F1": 0.73, "ECE": 0.02, "data": "usual"},
        "virus": {"texts": 9, "macro-F1": 0.70, "ECE": 0.05},
    },
    "f1": {"usual": {"sad": 0.6}},
}


def command(figures: object, code: int = 0) -> list[str]:
    """A command that writes figures as `paddlepool models verify --quality` does."""
    report = json.dumps({"double": {"version": 2, "figures": figures}})
    script = (
        "import pathlib, sys\n"
        "assert sys.argv[-2] == '--json'\n"
        f"pathlib.Path(sys.argv[-1]).write_text({report!r})\n"
        f"sys.exit({code})"
    )
    return [sys.executable, "-c", script]


@pytest.mark.parametrize(
    ("conditions", "fault"),
    [
        (["macro_f1 >= 0.7", "ece <= 0.05"], ""),
        (["macro_f1 >= 0.72"], "quality: macro_f1 is 0.7, the condition is macro_f1 >= 0.72"),
        (["ece <= 0.04"], "quality: ece is 0.05, the condition is ece <= 0.04"),
        (["f1 >= 0.7"], "quality: no figure is named f1; there are ece, macro_f1, sad, texts"),
    ],
)
def test_every_figure_of_a_name_must_fulfil_the_condition(
    conditions: list[str], fault: str
) -> None:
    assert fault_of(FIGURES, conditions) == fault


def test_the_command_measures_the_newest_version(tmp_path: Path) -> None:
    line = command_of("emotion", repository=tmp_path, data=tmp_path / "data")
    assert line[3:] == [
        *("paddlepool.cli", "models", "verify", "emotion", "--quality"),
        *("--repository", str(tmp_path), "--data", str(tmp_path / "data")),
    ]
    assert "--data" not in command_of("emotion", repository=tmp_path, data=None)


async def test_a_process_that_is_stopped_goes_on_later() -> None:
    suspension = Suspension()
    suspension.hold()
    gate = QualityGate(command(FIGURES), suspension)
    assert gate.fault(["sad >= 0.5"]) is None
    suspension.release()
    await eventually(lambda: gate._process.poll() is not None)
    assert gate.fault(["sad >= 0.5"]) == ""


async def test_a_stopped_process_ends_with_the_server() -> None:
    suspension = Suspension()
    suspension.hold()
    gate = QualityGate([sys.executable, "-c", "import time; time.sleep(1000)"], suspension)
    gate._lifeline.close()  # as the end of the server does
    await eventually(lambda: gate._process.poll() is not None)
    assert gate._process.returncode == -signal.SIGKILL
    gate.close()


async def verdict(bench: Bench, line: Sequence[str]) -> str:
    """The reason why version 2 is rejected before any request; "" if it is not."""
    bench.write(1, 2, policy=POLICY + 'quality = ["macro_f1 >= 0.7"]\n')
    await bench.start()
    bench.judge.quality_command = lambda model: line
    await bench.step()
    gates = [row.gate for row in bench.judge._comparisons.values()]
    assert all(gate is not None for gate in gates)
    await eventually(lambda: all(gate and gate._process.poll() is not None for gate in gates))
    await bench.step()
    return bench.status().reason


@pytest.mark.parametrize("code", [0, 1], ids=["as the model card says", "other figures"])
async def test_a_good_version_goes_on_to_be_compared(bench: Bench, code: int) -> None:
    assert await verdict(bench, command(FIGURES, code)) == ""
    assert (await bench.requests(40)).state == "promoted"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (command({"eval": {"usual": {"macro-F1": 0.6}}}), "quality: macro_f1 is 0.6"),
        (
            [sys.executable, "-c", "import sys; sys.exit('no such folder: data')"],
            "its quality cannot be measured: no such folder: data",
        ),
    ],
    ids=["worse", "without data"],
)
async def test_a_version_is_rejected_for_its_quality(
    bench: Bench, line: list[str], reason: str
) -> None:
    assert (await verdict(bench, line)).startswith(reason)
    assert bench.beside.open() == 0


async def test_the_end_of_the_server_ends_a_measurement(bench: Bench) -> None:
    bench.write(1, 2, policy=POLICY + 'quality = ["macro_f1 >= 0.7"]\n')
    await bench.start()
    endless = [sys.executable, "-c", "import time; time.sleep(1000)"]
    bench.judge.quality_command = lambda model: endless
    await bench.step()
    assert not await bench.step()
    [comparison] = bench.judge._comparisons.values()
    gate = comparison.gate
    assert gate is not None
    bench.judge.close()
    assert gate._process.returncode is not None


async def test_a_version_that_could_not_start_at_first_is_measured_all_the_same(
    bench: Bench,
) -> None:
    bench.beside.of(2).refuse = OSError(errno.EAGAIN, "Resource temporarily unavailable")
    bench.write(1, 2, policy=POLICY + 'quality = ["macro_f1 >= 0.8"]\n')
    await bench.start()
    bench.judge.quality_command = lambda model: command(FIGURES)
    await bench.step()
    bench.beside.of(2).refuse = None
    bench.clock.advance(RETRY_SECONDS)
    await bench.step()
    [comparison] = bench.judge._comparisons.values()
    gate = comparison.gate
    assert gate is not None
    await eventually(lambda: gate._process.poll() is not None)
    await bench.step()
    assert bench.status().reason.startswith("quality: macro_f1 is 0.73")
