"""New versions of a recogniser beside the one that serves, judged by the texts of whole pages."""

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from paddlepool.main import create_app
from paddlepool.tasks.task import load_tasks, settings_class
from tests.engine.fakes import wait_until
from tests.model_files import add_to_config
from tests.ran import ran
from tests.tasks.ocr.pages import BARS, encoded, page

# Comparing begins ten seconds after the start; tests/evidence/canary has the same without a server.
pytestmark = [pytest.mark.paddle, pytest.mark.nightly]

PAGE = encoded(page())
KEY = {"X-Api-Key": "admin"}
MODEL = "/v2/repository/models/ocr/canary"
POLICY = '[version_policy]\nkind = "canary"\nrequests = 24\nagreement = 0.8\nslower = 4\n'


def publish(repository: Path, version: int, characters: str = "[a, b]") -> None:
    """Publish a copy of the recogniser that has another list of characters."""
    first, staging = repository / "recogniser" / "1", repository / "recogniser" / ".staging"
    shutil.copytree(first, staging)
    config = staging / "inference.yml"
    config.write_text(config.read_text("utf-8").replace("[a, b]", characters), "utf-8")
    manifest = json.loads((staging / "manifest.json").read_text("utf-8"))
    manifest["files"][config.name] = {
        "bytes": config.stat().st_size,
        "sha256": hashlib.sha256(config.read_bytes()).hexdigest(),
    }
    (staging / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    staging.rename(repository / "recogniser" / str(version))


def decided(client: TestClient, version: int) -> dict[str, Any]:
    """Read pages until this version of the recogniser is promoted or rejected."""

    def over() -> bool:
        reply = client.post("/ocr", content=PAGE, headers={"Content-Type": "image/png"})
        assert reply.status_code == 200
        texts = [line["text"] for page in reply.json()["pages"] for line in page["lines"]]
        assert texts == [bar[-1] for bar in BARS]
        status = client.get(MODEL, headers=KEY).json()
        return status["parts"].get("recogniser") == version and status["state"] != "testing"

    wait_until(over, patience=60, every=0.3)
    return dict(client.get(MODEL, headers=KEY).json())


def test_a_good_recogniser_takes_over_and_a_wrong_one_never_answers(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    repository.mkdir()
    ran([sys.executable, "-m", "tests.tasks.ocr.tiny_models", repository])
    add_to_config(repository / "ocr", POLICY)
    settings = settings_class(load_tasks().values())(
        model_repository=repository,
        timeout_default_ms=30_000,
        codec_processes=1,
        prove_groups="off",
        admin_key="admin",
        state_file=tmp_path / "choices.json",
        repository_poll_seconds=0.2,
    )
    with TestClient(create_app(settings), "http://localhost") as client:
        wait_until(lambda: client.get("/v2/health/ready").status_code == 200)
        publish(repository, 2)
        status = decided(client, 2)
        assert status["state"] == "promoted", status["reason"]
        assert (status["agreement"], status["identical"]) == (1, status["compared"])
        publish(repository, 3, "[b, a]")
        status = decided(client, 3)
        assert status["state"] == "rejected"
        assert status["reason"].startswith("cannot start: self-test: 40.0% of the characters")
        assert status["serving_parts"] == {"detector": 1, "recogniser": 2}
