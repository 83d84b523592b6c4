"""Three times as much as the server can answer: it answers what it can and refuses the rest."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]

ROOT = Path(__file__).parents[2]


def test_goodput_survives_three_times_the_load(tmp_path: Path) -> None:
    """Both models, real requests: nothing but 200 and 503, and refusals that come at once. How
    much exactly is left a busy machine cannot tell: `loadtest/overload.py` measures it. Queues are
    short here, so that they are full within seconds."""
    repository = shutil.copytree(ROOT / "model_repo", tmp_path / "models")
    for name, jobs in (("u2netp", 4), ("emotion", 12)):
        config = repository / name / "config.toml"
        text = config.read_text("utf-8")
        short = re.sub(r"max_queue_size = \d+", f"max_queue_size = {jobs}", text)
        assert short != text
        config.write_text(short, "utf-8")
    report = tmp_path / "report.json"
    command = [sys.executable, "loadtest/overload.py", "--seconds", "4", "--rounds", "1"]
    command += ["--repository", str(repository), "--json", str(report)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert report.exists(), done.stdout + done.stderr
    found = json.loads(report.read_text("utf-8"))
    assert len(found) == 2
    for case in found.values():
        assert set(case["statuses"]) == {"200", "503"}, done.stdout
        assert case["goodput"] > 0.5, done.stdout
        assert case["refusal_p50_ms"] < 500, done.stdout
