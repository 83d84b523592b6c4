"""A repository that changes while it serves, with real predictors behind a real socket."""

import shutil
from pathlib import Path

import httpx
import pytest

from tests.e2e.process import running, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]
KEY = {"X-Api-Key": "admin"}
SETTINGS = {"admin_key": "admin", "repository_poll_seconds": 0.2, "prove_groups": "off"}


def publish(source: Path, target: Path) -> None:
    """As every tool should: complete under another name, then one rename."""
    staging = target.with_name(".staging")
    shutil.copytree(source, staging)
    staging.rename(target)


def reasons(client: httpx.Client) -> dict[tuple[str, str], str]:
    """Of every row in the index."""
    index = client.post("/v2/repository/index", headers=KEY).json()
    return {(entry["name"], entry["version"]): entry["reason"] for entry in index}


def test_poll_mode_follows_the_repository(repository: Path, tmp_path: Path) -> None:
    """What each change does is tested with the watcher; here the server runs it."""

    def wait_for(path: str, status: int) -> None:
        wait_until(lambda: client.get(path).status_code == status)

    tiny = repository / "tiny"
    with running(repository, tmp_path, settings=SETTINGS) as server, server.client() as client:
        publish(tiny / "1", tiny / "2")
        wait_for("/v2/models/tiny/versions/2/ready", 200)
        wait_for("/v2/models/tiny/versions/1", 404)
        publish(tiny, repository / "more")
        wait_for("/v2/models/more/versions/2/ready", 200)
        assert client.get("/metrics").text.count('paddlepool_model_ready{model="more"') == 1
        shutil.copytree(tiny / "1", tiny / ".staging")
        shutil.copy(repository / "other.pdiparams", tiny / ".staging" / "inference.pdiparams")
        (tiny / ".staging").rename(tiny / "3")
        wait_until(lambda: "inference.pdiparams" in reasons(client).get(("tiny", "3"), ""))
        wait_for("/v2/models/tiny/versions/3", 503)
        assert client.get("/v2/models/tiny").json()["versions"] == ["2"]
        before = server.children()
        with (tiny / "config.toml").open("a", encoding="utf-8") as config:
            config.write("max_batch = 3\n")
        wait_until(lambda: "max_batch" in reasons(client)["tiny", "2"])
        loaded = client.post("/v2/repository/models/tiny/load", headers=KEY)
        assert (loaded.status_code, "max_batch" in loaded.text) == (409, True)
        assert client.get("/v2/models/tiny/versions/2/ready").status_code == 200
        assert before <= server.children(), "a predictor was ended"
