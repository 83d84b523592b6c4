"""Servers for with_without.py that show the cost of the API process.

Every server answers texts with the same int8 program, with as many predictors as there are cores. A
probe is a program `PROBE PROGRAM.onnx TOKENIZER.json --port N --predictors N` that answers `POST
/sentiment`. It is started, never imported.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import tomlkit
from cases import TEXT, text_request
from harness import HOST, ROOT, free_port, is_ready, request, running_program, running_server
from load_clients import HttpWay, Way
from peers import loops
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
def beside(before: Path | None, probe: Path | None) -> Iterator[dict[str, dict[str, Way]]]:
    """Start this server, then the others; return ways to request the same answer, by name."""
    plain = json.dumps({"text": TEXT}).encode()
    text = request("POST", "/sentiment", plain, content_type="application/json")
    live = request("GET", LIVE)
    ways: dict[str, dict[str, Way]] = {}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        repository = int8_repository(Path(directory))
        for name, checkout in (("this", ROOT), ("before", before)):
            if checkout is not None:
                server = stack.enter_context(running_server(repository, checkout=checkout))
                asked = {"text": text_request(TEXT), "live": live}
                ways[name] = {
                    kind: HttpWay(server.port, sent, pid=server.pid) for kind, sent in asked.items()
                }
                threads = Path(f"/proc/{server.pid}/task").glob("*/comm")
                names = sorted(file.read_text("utf-8").strip() for file in threads)
                print(f"{len(names)} threads of the API process, {name}: {', '.join(names)}")
        version = max((repository / MODEL).glob("[0-9]*"), key=lambda each: int(each.name))
        if probe is not None:
            port, cores = free_port(), max(1, int(available_cores()))
            command = [sys.executable, probe, version / "int8.onnx", version / "tokenizer.json"]
            command += ["--port", str(port), "--predictors", str(cores)]
            process = stack.enter_context(
                running_program(command, lambda: is_ready(port, "/openapi.json"))
            )
            ways["probe"] = {"text": HttpWay(port, text, pid=process.pid)}
        alone = free_port()
        process = stack.enter_context(
            running_program([sys.executable, __file__, alone], lambda: is_ready(alone, LIVE))
        )
        ways["FastAPI"] = {
            kind: HttpWay(alone, sent, pid=process.pid)
            for kind, sent in (("text", text), ("live", live))
        }
        program, body = version / "int8.onnx", TEXT.encode()
        loop = loops(stack, "onnxruntime as served", program, "text", body, threads=1)
        ways["loop"] = {"text": loop}
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
