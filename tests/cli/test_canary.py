"""`paddlepool models canary` and the actions: what is sent, and what is printed."""

import argparse
import json
from dataclasses import asdict

import httpx
import pytest

from paddlepool.cli.canary import act
from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.status import CanaryStatus, SliceStatus

WHOLE = CanaryStatus(
    model="ocr",
    serving=1,
    previous=1,
    version=1,
    current=1,
    state="testing",
    since=1_795_000_000.0,
    requests=200,
    compared=20,
    agreement=0.94,
    agreement_low=0.88,
    agreement_high=0.97,
    identical=3,
    serving_parts={"det": 1, "rec": 2},
    previous_parts={"det": 1, "rec": 1},
    parts={"det": 1, "rec": 3},
    current_parts={"det": 1, "rec": 2},
)
STATUS = CanaryStatus(
    model="emotion",
    serving=2,
    previous=1,
    version=3,
    current=2,
    state="rejected",
    reason="of 12 answers 'fear', a share of 0.000 agrees, the limit is 0.5",
    by="measured",
    since=1_795_000_000.0,
    at=1_795_000_100.0,
    requests=200,
    compared=200,
    agreement=0.94,
    agreement_low=0.88,
    agreement_high=0.97,
    identical=3,
    drift=0.25,
    errors=1,
    error="it died",
    ratio=1.02,
    ratio_low=1.0,
    ratio_high=1.05,
    pairs=180,
    slices=(SliceStatus(name="fear", rows=12, agreement=0.0),),
)


def call(action: str, reply: httpx.Response, **options: bool) -> list[httpx.Request]:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return reply

    args = argparse.Namespace(
        model="emotion", url="http://models.example", json=options.get("json", False)
    )
    assert act(action, args, transport=httpx.MockTransport(answer)) == 0
    return requests


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLEPOOL_ADMIN_KEY", "secret")


@pytest.mark.parametrize(
    ("action", "method"), [("canary", "GET"), ("promote", "POST"), ("rollback", "POST")]
)
def test_an_action_is_sent_with_the_admin_key(
    action: str, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    [request] = call(action, httpx.Response(200, json=asdict(STATUS)))
    path = f"/v2/repository/models/emotion/{action}"
    assert (request.method, request.url.path) == (method, path)
    assert request.headers["authorization"] == "Bearer secret"
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line]
    facts = {line[0]: line[1] for line in lines}
    assert facts["state:"] == "rejected"
    assert facts["reason:"] == STATUS.reason
    assert facts["compared:"] == "200 of 200 requests"
    assert facts["agreement:"] == "0.940 (0.880 to 0.970), 3 identical to the last bit"
    assert facts["failures:"] == "1, the last one: it died"
    assert facts["fear"].split() == ["12", "0.000"]


def test_the_reply_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    call("canary", httpx.Response(200, json=asdict(STATUS)), json=True)
    assert json.loads(capsys.readouterr().out)["version"] == 3


def test_a_model_without_a_new_version(capsys: pytest.CaptureFixture[str]) -> None:
    status = CanaryStatus(model="emotion", serving=2, previous=None)
    call("canary", httpx.Response(200, json=asdict(status)))
    assert capsys.readouterr().out.split() == [
        "serving:",
        "emotion",
        "version",
        "2",
        "canary:",
        "no",
        "new",
        "version",
    ]


def test_a_version_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    status = CanaryStatus(model="m", serving=1, previous=None, reason="version 2 cannot be read")
    call("canary", httpx.Response(200, json=asdict(status)))
    assert "canary:   version 2 cannot be read" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (httpx.Response(409, json={"error": "no version of m is on trial"}), "is on trial"),
        (httpx.Response(200, text="hello"), "no reply of a Paddlepool server"),
    ],
    ids=["an error", "another server"],
)
def test_what_went_wrong_is_said(reply: httpx.Response, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call("canary", reply)


def test_without_a_key_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PADDLEPOOL_ADMIN_KEY")
    with pytest.raises(ConfigError, match="PADDLEPOOL_ADMIN_KEY is not set"):
        call("canary", httpx.Response(200, json=asdict(STATUS)))


def test_a_set_of_versions_is_shown_by_the_parts_that_differ(
    capsys: pytest.CaptureFixture[str],
) -> None:
    call("canary", httpx.Response(200, json=asdict(WHOLE)))
    shown = capsys.readouterr().out
    assert "ocr version 1 with rec 2\n" in shown
    assert "version 1 with rec 1: `rollback` returns to it" in shown
    assert "version 1 with rec 3, beside version 1 with rec 2\n" in shown
    assert "3 identical\n" in shown
    assert "difference" not in shown
