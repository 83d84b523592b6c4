"""The server held to its own OpenAPI document by schemathesis, unchanged."""

from pathlib import Path

import pytest

from tests.e2e.process import ROOT, running
from tests.ran import ran

pytestmark = [pytest.mark.e2e, pytest.mark.paddle, pytest.mark.slow]

SCHEMATHESIS = ROOT / ".venv-schema" / "bin" / "schemathesis"
CONFIGURATION = ROOT / "tests" / "e2e" / "schemathesis.toml"
SECONDS = 45
SEED = "41"
"""The same requests in each run: a change is held responsible only for what it changed."""


@pytest.mark.nightly
def test_every_answer_is_as_the_document_says(tmp_path: Path) -> None:
    if not SCHEMATHESIS.exists():
        pytest.skip("SKIPPED SCHEMA TESTS: make .venv-schema/.installed makes their environment")
    settings = {"codec_timeout_seconds": 60, "timeout_default_ms": 30_000}
    with running(ROOT / "model_repo", tmp_path, settings=settings) as server:
        document = f"{server.url}/openapi.json"
        options = ["--max-time", str(SECONDS), "--seed", SEED]
        options += ["--no-shrink", "--no-color", "--continue-on-failure"]
        done = ran(
            [SCHEMATHESIS, "--config-file", CONFIGURATION, "run", document, *options],
            cwd=tmp_path,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
