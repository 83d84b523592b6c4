"""Every command and program of docs/protocol.md, run as it stands there."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.e2e.process import ROOT, Server
from tests.ran import ran
from tests.tasks.codecs.pictures import encoded, photo

pytestmark = [pytest.mark.e2e, pytest.mark.paddle]
PAGE = (ROOT / "docs" / "protocol.md").read_text("utf-8")
ADDRESS, GRPC_ADDRESS = "127.0.0.1:8000", "127.0.0.1:8001"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


def run(command: list[str], server: Server, *, cwd: Path | None = None) -> str:
    grpc = server.wait_logged(event="listening for gRPC")["address"]
    done = ran(
        [
            part.replace(ADDRESS, f"127.0.0.1:{server.port}").replace(GRPC_ADDRESS, grpc)
            for part in command
        ],
        cwd=cwd,
        env={"KEY": "admin", "PATH": "/usr/bin:/bin"},
    )
    return done.stdout


def test_every_curl_command_answers(full_server: Server) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    commands = [block for block in blocks("sh") if block.startswith("curl")]
    assert len(commands) == 3
    infer, picture, control = (run(["bash", "-ec", block], full_server) for block in commands)
    assert '"id":"seven"' in infer
    assert '"name":"logits"' in infer
    assert '"content_type":"base64"},"data":["iVBORw0KGgo' in picture
    assert '"READY"' in control
    assert '"error"' not in infer + control


def test_the_client_programs_print_what_they_should(full_server: Server, tmp_path: Path) -> None:
    """`tritonclient` unchanged: a digit over HTTP, tasks, and a digit over gRPC."""
    (tmp_path / "photo.jpg").write_bytes(encoded(photo(), "JPEG"))
    digit, tasks, grpc_digit = (
        run([sys.executable, "-W", "ignore", "-c", program], full_server, cwd=tmp_path).strip()
        for program in blocks("python")
    )
    assert digit in list("0123456789")
    assert "happy" in tasks
    assert (tmp_path / "mask.png").read_bytes().startswith(b"\x89PNG")
    assert grpc_digit == digit


def test_every_endpoint_of_the_page_exists(full_server: Server) -> None:
    """The table names what /openapi.json has, and nothing else under /v2 but what is refused."""
    with full_server.client() as client:
        paths = client.get("/openapi.json").json()["paths"]
    served = {path.replace("{model}", "{m}").replace("{version}", "{v}") for path in paths}
    rows = re.findall(r"^\| `(?:GET|POST) (.*?) \| ", PAGE, re.M)
    named: set[str] = set()
    for row in rows:
        for path in re.findall(r"[/…][^`, ]*", row):
            if path.startswith("…"):
                named.add("/v2/repository/models/{m}" + path[1:])
                continue
            named |= {
                path.replace("[/versions/{v}]", ""),
                path.replace("[/versions/{v}]", "/versions/{v}"),
            }
    refused = {path for path in named if "sharedmemory" in path}
    assert len(refused) == 2
    assert named - refused == {path for path in served if path == "/v2" or path.startswith("/v2/")}
