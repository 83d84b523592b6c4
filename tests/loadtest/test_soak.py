"""What soak.py calls a loss with a cause, and growth; and a run of some seconds."""

import sys

import pytest
from harness import ROOT, Reply
from soak import CODEC, PREDICTOR, Kill, Watched, cause
from soak_traffic import Case, Lost, same_reply

from tests.ran import ran

PICTURE, TEXT = Case("picture", b"", picture=True), Case("text", b"")


def lost(case: Case, status: int) -> Lost:
    return Lost(case, began=10.0, ended=12.0, status=status, reason="")


@pytest.mark.parametrize(
    ("request_lost", "kill", "explained"),
    [
        (lost(TEXT, 500), Kill(11.0, PREDICTOR), True),
        (lost(TEXT, 500), Kill(9.0, PREDICTOR), False),
        (lost(TEXT, 500), Kill(9.97, PREDICTOR), True),
        (lost(TEXT, 500), Kill(12.001, PREDICTOR), True),
        (lost(TEXT, 500), Kill(11.0, CODEC), False),
        (lost(TEXT, 503), Kill(11.0, CODEC), False),
        (lost(PICTURE, 503), Kill(11.0, CODEC), True),
        (lost(PICTURE, 500), Kill(11.0, CODEC), False),
        (lost(PICTURE, 0), Kill(11.0, PREDICTOR), False),
    ],
)
def test_a_loss_is_explained_by_a_kill_of_what_it_was_in(
    request_lost: Lost, kill: Kill, explained: bool
) -> None:
    """Nothing else explains one."""
    assert bool(cause(request_lost, Watched(kills=[kill]))) == explained


def test_an_answer_may_differ_in_last_digits_and_in_nothing_else() -> None:
    """Of JSON; a picture's bytes must be the same, a refusal's code as well."""

    def reply(body: bytes, *, status: int = 200, kind: str = "application/json") -> Reply:
        return Reply(status, {"content-type": kind}, body, 0.0)

    calm = reply(b'[[{"label": "sad", "score": 0.5}]]')
    assert same_reply(reply(b'[[{"label": "sad", "score": 0.50001}]]'), calm)
    assert not same_reply(reply(b'[[{"label": "sad", "score": 0.51}]]'), calm)
    assert not same_reply(reply(b'[[{"label": "fear", "score": 0.5}]]'), calm)
    assert not same_reply(reply(b"a", kind="image/png"), reply(b"b", kind="image/png"))
    refused = reply(b'{"code": "text_empty", "request_id": "1"}', status=422)
    assert same_reply(reply(b'{"code": "text_empty"}', status=422), refused)
    assert not same_reply(reply(b'{"code": "text_too_long"}', status=422), refused)
    assert not same_reply(reply(b"of a proxy", status=422, kind="text/plain"), refused)


@pytest.mark.nightly
def test_some_seconds_of_it() -> None:
    """Kills and a reload in 20 s: every answer right but for what was in a killed process."""
    options = ("--minutes", "0.34", "--kill-every", "5", "--reload-every", "8")
    done = ran([sys.executable, ROOT / "loadtest" / "soak.py", *options], timeout=400, check=False)
    output = done.stdout + done.stderr
    assert "\n0 wrong answers\n" in output, output
    assert "\n0 requests lost without a cause\n" in output, output
