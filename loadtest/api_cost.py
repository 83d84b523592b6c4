"""Servers for with_without.py that show the cost of the API process.

Every server answers texts with the same int8 program, with as many predictors as there are cores. A
probe is a program `PROBE PROGRAM.onnx TOKENIZER.json --port N --predictors N` that answers `POST
/sentiment`. It is started, never imported.
"""

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import tomlkit
from cases import TEXT, text_request
from harness import (
    HOST,
    ROOT,
    Server,
    free_port,
    json_request,
    request,
    running_program,
    running_server,
)
from load_clients import HttpWay
from pydantic import BaseModel

from app.contracts.resources import available_cores

MODEL, GROUP = "emotion", "onnxruntime_int8"
LIVE = "/v2/health/live"


class Text(BaseModel):
    """The text for the bare application and the probe."""

    text: str


def int8_repository(directory: Path) -> Path:
    """A repository with only this model. Its int8 group is the default, with one predictor per
    core."""
    shutil.copytree(ROOT / "model_repo" / MODEL, directory / MODEL)
    file = directory / MODEL / "config.toml"
    config = tomlkit.parse(file.read_text("utf-8")).unwrap()
    [group] = [each for each in config["instance_group"] if each["name"] == GROUP]
    del group["start"]
    group["count"] = "cores"
    config["default_group"] = GROUP
    file.write_text(tomlkit.dumps(config), "utf-8")
    return directory


@contextlib.contextmanager
def beside(before: Path | None, probe: Path | None) -> Iterator[dict[str, dict[str, HttpWay]]]:
    """Start this server, then the others; return ways to request the same answer, by name."""
    text = json_request("/sentiment", {"text": TEXT})
    live = request("GET", LIVE)
    ways: dict[str, dict[str, HttpWay]] = {}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:

        def start(name: str, server: AbstractContextManager[Server], **asked: bytes) -> None:
            running = stack.enter_context(server)
            ways[name] = {kind: HttpWay(running, sent) for kind, sent in asked.items()}

        repository = int8_repository(Path(directory))
        for name, checkout in (("this", ROOT), ("before", before)):
            if checkout is not None:
                server = running_server(repository, checkout=checkout)
                start(name, server, text=text_request(TEXT), live=live)
        version = max((repository / MODEL).glob("[0-9]*"), key=lambda each: int(each.name))
        port = free_port()
        if probe is not None:
            files = [version / "int8.onnx", version / "tokenizer.json"]
            predictors = max(1, int(available_cores()))
            options = ["--port", port, "--predictors", predictors]
            command = [sys.executable, probe, *files, *options]
            start("probe", running_program(command, port, path="/openapi.json"), text=text)
            port = free_port()
        bare = running_program([sys.executable, __file__, port], port, path=LIVE)
        start("FastAPI", bare, text=text, live=live)
        yield ways


def bare_fastapi(port: int) -> None:
    """Serve one route that computes nothing and one that validates a text."""
    import uvicorn
    from fastapi import FastAPI

    application = FastAPI()

    @application.get(LIVE)
    async def live() -> dict[str, bool]:
        return {"live": True}

    @application.post("/sentiment")
    async def sentiment(body: Text) -> list[dict[str, str | float]]:
        return [{"label": "sad", "score": 0.5}] if body.text else []

    uvicorn.run(application, host=HOST, port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    bare_fastapi(int(sys.argv[1]))
