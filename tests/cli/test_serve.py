"""Processes that `paddlepool serve` starts before it knows its settings."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from paddlepool.cli import main
from paddlepool.cli.serve import CODEC_PROCESSES, STATE_FILE, _start_spares
from paddlepool.engine.backends.process import OPENVINO
from paddlepool.settings.server import Settings
from paddlepool.tasks.codecs.program import SANDBOX
from tests.descriptors import open_descriptors
from tests.e2e.process import children_of

pytestmark = pytest.mark.slow  # real processes


@pytest.mark.parametrize("stored", [True, False])
def test_predictors_are_started_only_if_a_program_is_stored(
    stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STATE_FILE, str(tmp_path / "choices.json"))
    monkeypatch.setattr("paddlepool.cli.serve.available_cores", lambda: 1.0)
    if stored:
        (tmp_path / "compiled").mkdir()
        (tmp_path / "compiled" / "program").touch()
    with closing(_start_spares()) as spares:
        prepared = [process.popen.args[-1] for _, process in spares._waiting]  # type: ignore[index]
    assert prepared == [SANDBOX] * CODEC_PROCESSES + [OPENVINO] * stored
    assert Settings.model_fields["codec_processes"].default == CODEC_PROCESSES


def test_a_start_that_fails_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(STATE_FILE, "off")
    processes, descriptors = children_of(os.getpid()), open_descriptors()
    assert main(["serve", "--port", "x"]) == 3
    assert "--port" in capsys.readouterr().err
    assert children_of(os.getpid()) <= processes
    assert open_descriptors() <= descriptors
