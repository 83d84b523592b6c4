"""The load generator: its plans, its inputs, and the exit code it ends with."""

import io
import json
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import pytest
from inputs import draw_picture, draw_pictures
from PIL import Image
from plans import users_at

from tests.deploy.conftest import Stub
from tests.http_stub import Reply, RequestOutput, as_json
from tests.ran import ROOT, ran

LOCUST = ROOT / ".venv-load" / "bin" / "locust"
LABELS = ("angry", "happy", "neutral", "surprise", "sad", "fear")


@pytest.mark.parametrize(
    ("plan", "expected"), [("step", [2, 4, 6, 8, 10]), ("spike", [2, 2, 10, 2, 2])]
)
def test_plans_have_five_parts_and_an_end(plan: str, expected: list[int]) -> None:
    """Users at the start of each fifth of the time; never without one before the end."""
    users = [users_at(second, plan=plan, duration=50, peak=10) for second in (0, 10, 20, 30, 40)]
    assert users == expected
    assert users_at(9.999, plan=plan, duration=10, peak=1) == 1
    assert users_at(10, plan=plan, duration=10, peak=1) is None


@pytest.mark.slow
def test_pictures_are_jpegs_from_a_third_to_four_megapixels() -> None:
    """Of the size that they say, the same on every run."""
    pictures = draw_pictures()
    sizes = []
    for picture in pictures:
        with Image.open(io.BytesIO(picture.data)) as image:
            assert (image.format, image.size) == ("JPEG", (picture.width, picture.height))
            sizes.append(image.width * image.height / 1e6)
    assert min(sizes) == pytest.approx(0.3, rel=0.05)
    assert max(sizes) == pytest.approx(4.0, rel=0.05)
    first = draw_picture(pictures[0].width, pictures[0].height, seed=1)
    assert first == pictures[0]


def good(path: str, body: bytes) -> Reply:
    """What a server in good order replies."""
    if path.startswith("/segment"):
        with Image.open(io.BytesIO(body)) as image:
            width, height = image.size
        return 200, {"X-Width": str(width), "X-Height": str(height)}, b"picture"
    scores = [{"label": label, "score": 1 / 6} for label in LABELS]
    return as_json([scores] * len(json.loads(body)["inputs"]))


def every_other(status: int) -> RequestOutput:
    """Alternate good replies with this status; the turns are taken for each path apart."""
    turns = {"/segment": count(), "/sentiment": count()}

    def handle(path: str, body: bytes) -> Reply:
        if next(turns[urlsplit(path).path]) % 2:
            return as_json({"status": status}, status)
        return good(path, body)

    return handle


def wrong_size(path: str, body: bytes) -> Reply:
    if path.startswith("/segment"):
        return 200, {"X-Width": "1", "X-Height": "1"}, b"picture"
    return good(path, body)


def run_locust(url: str, *arguments: str) -> tuple[int, str]:
    """Two seconds of load: locust's exit code, and what it printed."""
    if not LOCUST.exists():
        pytest.skip("locust is not installed (make .venv-load/.installed)")
    command = [LOCUST, "--locustfile", ROOT / "loadtest" / "locustfile.py"]
    command += ["--headless", "--only-summary", "--host", url, "--duration", "2"]
    command += ["--max-p95-segment", "30000", "--max-p95-sentiment", "30000", *arguments]
    done = ran(command, timeout=180, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.e2e
@pytest.mark.parametrize("plan", ["step", "arrivals"])
def test_a_good_server_passes_every_plan(stub: Stub, plan: str) -> None:
    """With both endpoints asked."""
    code, printed = run_locust(stub(good), "--plan", plan, "--rate", "40")
    assert code == 0, printed
    assert "within the limits" in printed


@pytest.mark.e2e
def test_shed_load_is_no_failure(stub: Stub) -> None:
    """503 is counted in a row of its own."""
    code, printed = run_locust(stub(every_other(503)), "--plan", "arrivals", "--rate", "40")
    assert code == 0, printed
    assert "/sentiment (shed)" in printed
    assert " 0 failed" in printed


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("handler", "arguments", "fault"),
    [
        (every_other(500), (), "/sentiment failed"),
        (wrong_size, (), "/segment failed"),
        (lambda path, body: as_json({}, 503), (), "/segment answered nothing"),
        (good, ("--max-p95-segment", "0"), "/segment p95"),
    ],
    ids=["errors", "wrong picture", "only refusals", "too slow"],
)
def test_trouble_ends_with_exit_code_1(
    stub: Stub, handler: Any, arguments: tuple[str, ...], fault: str
) -> None:
    """The fault is named."""
    code, printed = run_locust(stub(handler), "--plan", "arrivals", "--rate", "40", *arguments)
    assert code == 1, printed
    assert fault in printed
