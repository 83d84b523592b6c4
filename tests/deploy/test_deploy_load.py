"""The load generator: its plans, its inputs, and the exit code it ends with."""

from __future__ import annotations

import io
import json
import math
import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image

from tests.deploy.conftest import Answer, Reply, as_json

ROOT = Path(__file__).resolve().parents[2]
LOCUST = ROOT / ".venv-load" / "bin" / "locust"
LABELS = ("angry", "happy", "neutral", "surprise", "sad", "fear")


@pytest.fixture
def users_at(script: Callable[[str], ModuleType]) -> Callable[..., int | None]:
    function: Callable[..., int | None] = script("loadtest/plans.py").users_at
    return function


@pytest.mark.parametrize(
    ("plan", "expected"),
    [("step", [2, 4, 6, 8, 10]), ("spike", [2, 2, 10, 2, 2])],
    ids=["step", "spike"],
)
def test_plans_have_five_parts(
    users_at: Callable[..., int | None], plan: str, expected: list[int]
) -> None:
    """Users at the start of each fifth of the time."""
    found = [users_at(second, plan=plan, duration=50, peak=10) for second in (0, 10, 20, 30, 40)]
    assert found == expected


@pytest.mark.parametrize("plan", ["step", "spike"])
def test_a_plan_ends_at_its_duration(users_at: Callable[..., int | None], plan: str) -> None:
    """Never without a user before it."""
    assert users_at(9.999, plan=plan, duration=10, peak=1) == 1
    assert users_at(10, plan=plan, duration=10, peak=1) is None


@pytest.mark.slow
def test_pictures_are_jpegs_from_a_third_to_four_megapixels(
    script: Callable[[str], ModuleType],
) -> None:
    """Of the size that they say, the same on every run."""
    inputs = script("loadtest/inputs.py")
    pictures = inputs.draw_pictures()
    sizes = []
    for picture in pictures:
        with Image.open(io.BytesIO(picture.data)) as image:
            assert (image.format, image.size) == ("JPEG", (picture.width, picture.height))
            sizes.append(image.width * image.height / 1e6)
    assert min(sizes) == pytest.approx(0.3, rel=0.05)
    assert max(sizes) == pytest.approx(4.0, rel=0.05)
    first = inputs.draw_picture(pictures[0].width, pictures[0].height, seed=1)
    assert first == pictures[0]


def good(path: str, body: bytes) -> Reply:
    """What a server in good order replies."""
    if path.startswith("/segment"):
        with Image.open(io.BytesIO(body)) as image:
            width, height = image.size
        return 200, {"X-Width": str(width), "X-Height": str(height)}, b"picture"
    answer = [{"label": label, "score": 1 / 6} for label in LABELS]
    return as_json([answer] * len(json.loads(body)["inputs"]))


def every_other(status: int) -> Answer:
    """Alternate good replies with this status; the turns are taken for each path apart."""
    turns = {"/segment": count(), "/sentiment": count()}

    def answer(path: str, body: bytes) -> Reply:
        if next(turns[urlsplit(path).path]) % 2:
            return as_json({"status": status}, status)
        return good(path, body)

    return answer


def wrong_size(path: str, body: bytes) -> Reply:
    if path.startswith("/segment"):
        return 200, {"X-Width": "1", "X-Height": "1"}, b"picture"
    return good(path, body)


def run_locust(url: str, *arguments: str) -> tuple[int, str]:
    """Two seconds of load: locust's exit code, and what it printed."""
    if not LOCUST.exists():
        pytest.skip("locust is not installed (make .venv-load/.installed)")
    command = [str(LOCUST), "--locustfile", str(ROOT / "loadtest" / "locustfile.py")]
    command += ["--headless", "--only-summary", "--host", url, "--duration", "2"]
    command += ["--max-p95-segment", "30000", "--max-p95-sentiment", "30000", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.e2e
@pytest.mark.parametrize("plan", ["step", "spike", "arrivals"])
def test_a_good_server_passes_every_plan(stub: Callable[[Answer], str], plan: str) -> None:
    """With both endpoints asked."""
    code, printed = run_locust(stub(good), "--plan", plan, "--rate", "40")
    assert code == 0, printed
    assert "within the limits" in printed


@pytest.mark.e2e
def test_shed_load_is_no_failure(stub: Callable[[Answer], str]) -> None:
    """503 is counted in a row of its own."""
    code, printed = run_locust(stub(every_other(503)), "--plan", "arrivals", "--rate", "40")
    assert code == 0, printed
    assert "/sentiment (shed)" in printed
    assert " 0 failed" in printed


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("answer", "arguments", "fault"),
    [
        (every_other(500), (), "/sentiment failed"),
        (wrong_size, (), "/segment failed"),
        (lambda path, body: as_json({}, 503), (), "/segment answered nothing"),
        (good, ("--max-p95-segment", "0"), "/segment p95"),
    ],
    ids=["errors", "wrong picture", "only refusals", "too slow"],
)
def test_trouble_ends_with_exit_code_1(
    stub: Callable[[Answer], str], answer: Any, arguments: tuple[str, ...], fault: str
) -> None:
    """The fault is named."""
    code, printed = run_locust(stub(answer), "--plan", "arrivals", "--rate", "40", *arguments)
    assert code == 1, printed
    assert fault in printed


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reloads_of(script: Callable[[str], ModuleType], clock: Clock) -> Callable[[str], Any]:
    """Windows of 20 seconds, whose reloads that server carries out."""

    def build(url: str = "http://127.0.0.1") -> Any:
        return script("loadtest/reloads.py").Reloads(
            url, model="emotion", key="", seconds=20.0, clock=lambda: clock.now, sleep=clock.sleep
        )

    return build


def reloading(
    seconds: Sequence[float],
    *,
    status: int = 200,
    slower: float = 0.0,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """Reloads that take so long in turn, and so much longer for all else meanwhile.

    Those after the last of `seconds`, and all with another status, are refused.
    """
    turns = iter(seconds)
    under_way = threading.Event()

    def answer(path: str, body: bytes) -> Reply:
        if path.startswith("/v2/repository/models/emotion/load"):
            if (taking := next(turns, None)) is None:
                return as_json({}, 500)
            under_way.set()
            sleep(taking)
            under_way.clear()
            return as_json({}, status)
        if under_way.is_set():
            sleep(slower)
        return good(path, body)

    return answer


def test_every_other_window_has_one_reload(
    stub: Callable[[Answer], str], reloads_of: Callable[[str], Any], clock: Clock
) -> None:
    """A second after its beginning. Which of a pair has it alternates; no time is left out."""
    reloads = reloads_of(stub(reloading([3.0, 4.0, 5.0], sleep=clock.sleep)))
    reloads.run()
    *found, refused = [(each.began, each.reloads, each.ended) for each in reloads.windows]
    assert found == [
        (-math.inf, False, 110.0),
        (110.0, True, 130.0),
        (130.0, False, 150.0),
        (150.0, False, 170.0),
        (170.0, True, 190.0),
        (190.0, True, 210.0),
        (210.0, False, 230.0),
        (230.0, False, 250.0),
    ]
    assert refused == (250.0, True, math.inf)
    spans = [(each.reload_began, each.reload_ended) for each in reloads.windows if each.reloads]
    assert spans == [(111.0, 114.0), (171.0, 175.0), (191.0, 196.0), (251.0, 251.0)]


def test_a_reload_that_outlasts_its_window_lengthens_it(
    stub: Callable[[Answer], str], reloads_of: Callable[[str], Any], clock: Clock
) -> None:
    """Until a second after the reload; those that follow get the same length."""
    reloads = reloads_of(stub(reloading([30.0, 3.0], sleep=clock.sleep)))
    reloads.run()
    _, *windows, _ = reloads.windows
    assert [each.ended - each.began for each in windows] == [32.0] * 4


@pytest.mark.parametrize(
    ("sent", "answered", "expected", "met"),
    [
        (102.0, 103.0, 1, True),
        (108.0, 109.0, 1, False),
        (109.9, 112.0, 1, False),
        (111.0, 112.0, 2, False),
        (119.9, 129.0, 2, False),
        (121.0, 129.9, 3, False),
        (129.9, 130.5, 3, False),
        (129.9, 132.0, 3, True),
        (99.9, 120.5, 0, True),
    ],
    ids=[
        "in a reload",
        "after it",
        "late in its window",
        "in a quiet window",
        "over two quiet windows",
        "in the second",
        "into a window with a reload",
        "into the reload",
        "over everything",
    ],
)
def test_an_answer_counts_for_one_window(
    reloads_of: Callable[[], Any], sent: float, answered: float, expected: int, met: bool
) -> None:
    """That in which it was sent; whether it met a reload is told apart."""
    reloads = reloads_of()
    for number, has_reload in enumerate((True, False, False, True)):
        window = reloads.begin(100.0 + 10 * number, reloads=has_reload)
        if has_reload:
            window.reload_began, window.reload_ended = window.began + 1, window.began + 5
    milliseconds = 1000 * (answered - sent)
    reloads.answered("/segment", sent, milliseconds, None)
    found = [(number, each.taken) for number, each in enumerate(reloads.windows) if each.taken]
    assert found == [(expected, {"/segment": [milliseconds]})]
    assert reloads.met == ({"/segment": [milliseconds]} if met else {})


def test_a_failure_is_no_latency(reloads_of: Callable[[], Any]) -> None:
    reloads = reloads_of()
    reloads.answered("/segment", 1.0, 5.0, OSError())
    assert [dict(each.taken) for each in reloads.windows] == [{}]


def judged(reloads: Any, rounds: Sequence[tuple[float, float]], *, answers: int) -> list[str]:
    """What judge() says when so many answers in each window take so many milliseconds each.

    Each round has its figure with a reload and that without; a window that has not ended follows.
    """
    reloads.answered("/segment", 0.0, 5000.0, None)
    for number, (on, off) in enumerate([*rounds, (9999.0, 1.0)]):
        for has_reload in (True, False) if number % 2 == 0 else (False, True):
            window = reloads.begin(len(reloads.windows) * 10.0, reloads=has_reload)
            if has_reload:
                window.reload_began, window.reload_ended = window.began + 1, window.began + 2
            for _ in range(answers):
                reloads.answered("/segment", window.began + 5, on if has_reload else off, None)
    faults: list[str] = reloads.judge(("/segment",), 1.1)
    return faults


def test_whole_pairs_are_compared(
    reloads_of: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Pooled, and each by itself; neither the warm-up nor a pair that was cut short counts."""
    assert judged(reloads_of(), [(100, 100), (120, 100), (90, 100)], answers=100) == [
        "/segment: a reload adds 20% to p99"
    ]
    printed = capsys.readouterr().out
    assert "3 reloads of emotion, each in a window of its own, took 1.0 to 1.0 s" in printed
    assert "p99 120.0 ms in 3 windows with a reload of emotion (300 answers), 100.0 ms" in printed
    assert "without (300 answers): ratio 1.200 (limit 1.10), 1.000 to 1.200 in 90 %" in printed
    assert "/segment: ratio 0.900 to 1.200 in 3 pairs" in printed


def test_pairs_are_not_compared_on_few_answers(
    reloads_of: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """All together may be enough."""
    assert judged(reloads_of(), [(100, 100), (105, 100)], answers=50) == []
    printed = capsys.readouterr().out
    assert "ratio 1.050" in printed
    assert "pairs" not in printed


@pytest.mark.parametrize("rounds", [[], [(100, 100)]], ids=["no pair", "one"])
def test_too_few_answers_cannot_be_judged(
    reloads_of: Callable[[], Any], rounds: list[tuple[float, float]]
) -> None:
    """Longer runs can."""
    expected = ["reloads cannot be judged: make --duration longer"]
    assert judged(reloads_of(), rounds, answers=99) == expected


@pytest.mark.slow
def test_a_phase_ends_in_time_whatever_its_last_reload_does(
    script: Callable[[str], ModuleType], stub: Callable[[Answer], str]
) -> None:
    """What loadtest/reload.py counts is of equal phases: the one without reloads is no shorter."""
    length = 0.2
    phase = script("loadtest/reload.py").phase
    over = threading.Event()
    late = threading.Semaphore(0)

    def answer(path: str, body: bytes) -> Reply:
        if path.endswith("/load"):
            time.sleep(2 * length)  # by now the phase is over
            over.set()
            assert all(late.acquire(timeout=60) for _ in range(100))
        elif over.is_set():
            late.release()
        return as_json({})

    port = urlsplit(stub(answer)).port
    request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    case = SimpleNamespace(name="a case", model=SimpleNamespace(name="emotion"), request=request)
    found = phase(
        SimpleNamespace(port=port), case, every=0.0, seconds=length, number=1, pause=0.001, seed=1
    )
    assert len(found.reloads) == 1
    assert len(found.met) > len(found.taken) + 50


def test_both_tools_take_the_same_percentile(script: Callable[[str], ModuleType]) -> None:
    """loadtest/reload.py takes that of loadtest/interleaved_runs.py."""
    parts = [[1.0, 7.0, 3.0], [9.0, 2.5]]
    expected = script("loadtest/interleaved_runs.py").pooled(parts, 0.99)
    assert script("loadtest/reloads.py").percentile(parts, 99) == pytest.approx(expected)


RELOADING = (
    *("--plan", "arrivals", "--rate", "200", "--segment-share", "0.5", "--duration", "4.5"),
    *("--reload", "emotion", "--reload-window", "0.5"),
)


@pytest.mark.e2e
def test_what_reloads_add_is_found_by_locust(stub: Callable[[Answer], str]) -> None:
    """The p99 of both endpoints with them and without, and of what met them.

    What they add here is more than a busy machine adds by itself.
    """
    answer = reloading([0.2] * 9, slower=2.0)
    code, printed = run_locust(stub(answer), *RELOADING, "--max-reload-ratio", "1000")
    assert code == 0, printed
    for endpoint in ("/segment", "/sentiment"):
        found = re.search(
            rf"{endpoint}: p99 ([\d.]+) ms in \d+ windows with a reload of emotion .*"
            r"answers\), ([\d.]+) ms in those without",
            printed,
        )
        assert found, printed
        assert float(found[1]) >= 2000
        assert float(found[2]) < float(found[1])
        met = re.search(rf"{endpoint}: \d+ requests met a reload: p50 ([\d.]+) ms", printed)
        assert met, printed
        assert float(met[1]) >= 2000


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("status", "arguments", "fault"),
    [
        (200, ("--max-reload-ratio", "0.001"), "/sentiment: a reload adds"),
        (200, ("--rate", "5"), "reloads cannot be judged"),
        (500, ("--duration", "2"), "emotion could not be loaded anew: HTTP Error 500"),
    ],
    ids=["limit", "too few", "refused"],
)
def test_reloads_that_cost_or_fail_end_with_exit_code_1(
    stub: Callable[[Answer], str], status: int, arguments: tuple[str, ...], fault: str
) -> None:
    """The fault is named."""
    answer = reloading([0.2] * 9, status=status)
    code, printed = run_locust(stub(answer), *RELOADING, *arguments)
    assert code == 1, printed
    assert fault in printed
