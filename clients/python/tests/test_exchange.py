"""When a request is sent again, and when not."""

from __future__ import annotations

import asyncio
import email.utils
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from paddlepool_client import (
    ApiError,
    AsyncClient,
    Client,
    InvalidRequest,
    RequestFailed,
    Retries,
    ServerFault,
    TimedOut,
    Unauthorized,
    Unavailable,
    Unreachable,
)

Asking = Callable[..., Any]

ONCE = Retries(attempts=1)


def busy(retry_after: str | None = None, status: int = 503) -> httpx.Response:
    headers = [] if retry_after is None else [(b"retry-after", retry_after.encode("latin-1"))]
    return httpx.Response(status, headers=headers, json={"code": "overloaded", "detail": "full"})


def scores() -> httpx.Response:
    return httpx.Response(200, json=[[{"label": "sad", "score": 0.75}]])


def in_seconds(seconds: float) -> str:
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("retry_after", "least", "most"),
    [("3", 3.0, 3.75), ("0", 0.0, 0.0), (None, 0.25, 0.3125)],
    ids=["as the server asks", "at once", "own back-off"],
)
def test_busy_is_tried_again_after_the_right_time(
    asking: Asking, status: int, retry_after: str | None, least: float, most: float
) -> None:
    """At least as long as Retry-After says, or the base of the back-off; up to a quarter more."""
    server = asking(busy(retry_after, status), scores())
    assert server.sentiment(["好"])[0][0].label == "sad"
    assert len(server.requests) == 2
    [slept] = server.slept
    assert least <= slept <= most


def test_retry_after_may_be_a_date(asking: Asking) -> None:
    """In whole seconds, so that up to one of them is gone already."""
    server = asking(busy(in_seconds(10)), scores())
    server.sentiment(["好"])
    [slept] = server.slept
    assert 8 <= slept <= 12.5


def test_the_own_back_off_doubles_and_has_an_end(asking: Asking) -> None:
    """0.25, 0.5, 1, … seconds, and never more than half a minute and the jitter."""
    server = asking(*(busy() for _ in range(11)), scores(), retries=Retries(attempts=12))
    server.sentiment(["好"])
    for slept, least in zip(server.slept, [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30, 30, 30], strict=True):
        assert least <= slept <= 1.25 * least


def test_a_date_that_is_past_does_not_mean_at_once(asking: Asking) -> None:
    """The clocks of two machines may differ."""
    server = asking(busy(in_seconds(-60)), busy(in_seconds(-60)), scores())
    server.sentiment(["好"])
    for slept, least in zip(server.slept, [0.25, 0.5], strict=True):
        assert least <= slept <= 1.25 * least


@pytest.mark.parametrize(
    "problem", [{"errors": None}, {"errors": 5}, {"code": None, "detail": None, "errors": {}}]
)
def test_an_error_of_a_gateway_is_one_of_the_client(
    asking: Asking, problem: dict[str, object]
) -> None:
    with pytest.raises(ApiError) as refused:
        asking(httpx.Response(422, json=problem)).sentiment(["好"])
    assert (refused.value.status, refused.value.code) == (422, "unknown")
    assert refused.value.errors == ()


@pytest.mark.parametrize(
    "retry_after",
    ["31", "3600", "9" * 400, in_seconds(3600)],
    ids=["seconds", "an hour", "for ever", "a date"],  # two processes read two clocks
)
def test_a_server_that_asks_for_long_is_not_waited_for(asking: Asking, retry_after: str) -> None:
    """Nor asked sooner than it wants: the caller hears of it at once, and of when to come back."""
    server = asking(busy(retry_after))
    with pytest.raises(Unavailable) as refused:
        server.sentiment(["好"])
    assert refused.value.code == "overloaded"
    assert refused.value.retry_after is not None
    assert refused.value.retry_after > 30
    assert server.slept == []


@pytest.mark.parametrize("attempts", [1, 3])
def test_the_last_refusal_is_raised(asking: Asking, attempts: int) -> None:
    server = asking(*(busy("1") for _ in range(attempts)), retries=Retries(attempts=attempts))
    with pytest.raises(Unavailable) as refused:
        server.sentiment(["好"])
    assert (refused.value.status, refused.value.code) == (503, "overloaded")
    assert refused.value.retry_after == 1
    assert len(server.slept) == attempts - 1


def test_a_lost_connection_is_tried_again(asking: Asking) -> None:
    server = asking(httpx.ReadError("lost"), scores())
    server.sentiment(["好"])
    first, second = server.requests
    assert first.content == second.content
    assert len(server.slept) == 1


REFUSED, LATE = httpx.ConnectError("refused"), httpx.ReadTimeout("late")
LOST: dict[str, tuple[list[httpx.TransportError], dict[str, Any], str]] = {
    "late": ([LATE], {}, "no reply from http://server (late)"),
    "late write": ([httpx.WriteTimeout("late")], {}, "no reply from http://server (late)"),
    "late with a password": (
        [LATE],
        {"url": "http://me:secret@server/a/"},
        "http://server/a (late)",
    ),
    "away": (
        [REFUSED, httpx.ConnectTimeout("")],
        {"retries": Retries(attempts=2)},
        "no server at http://server (ConnectTimeout)",
    ),
    "no address": ([], {"url": "nowhere://x", "transport": None}, "cannot send to nowhere://x ("),
}


@pytest.mark.parametrize(("outcomes", "settings", "message"), LOST.values(), ids=LOST)
def test_a_server_that_gives_no_reply_is_unreachable(
    asking: Asking, outcomes: list[httpx.TransportError], settings: dict[str, Any], message: str
) -> None:
    """A late reply is not asked for again: more work would make it later still."""
    server = asking(*outcomes, **settings)
    with pytest.raises(Unreachable) as failed:
        server.sentiment(["好"])
    assert message in str(failed.value)
    assert (len(server.requests), len(server.slept)) == (len(outcomes), max(0, len(outcomes) - 1))
    assert not outcomes or failed.value.__cause__ is outcomes[-1]


def test_a_closed_client_and_a_parameter_that_cannot_be_encoded_are_unreachable() -> None:
    transport = httpx.MockTransport(lambda request: scores())
    with Client(transport=transport) as client, pytest.raises(Unreachable, match="surrogates"):
        client.segment(b"", model="\ud800")
    with pytest.raises(Unreachable, match="closed"):
        client.info()

    async def closed() -> None:
        async with AsyncClient(transport=transport) as client:
            pass
        await client.info()

    with pytest.raises(Unreachable, match="closed"):
        asyncio.run(closed())


def leaves(error: type[Exception]) -> Iterator[type[Exception]]:
    below = error.__subclasses__()
    yield from (leaf for subclass in below for leaf in leaves(subclass)) if below else (error,)


@pytest.mark.parametrize("error", sorted(leaves(httpx.RequestError), key=str))
def test_no_error_of_httpx_gets_through(asking: Asking, error: type[Exception]) -> None:
    """Whoever catches RequestFailed catches all that a request can come to."""
    with pytest.raises(RequestFailed) as failed:
        asking(error("why"), retries=ONCE).sentiment(["好"])
    assert "why" in str(failed.value)
    assert isinstance(failed.value, Unreachable) == issubclass(error, httpx.TransportError)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (301, ApiError),
        (400, InvalidRequest),
        (401, Unauthorized),
        (403, Unauthorized),
        (404, InvalidRequest),
        (408, TimedOut),
        (413, InvalidRequest),
        (422, InvalidRequest),
        (429, Unavailable),
        (500, ServerFault),
        (502, ServerFault),
        (503, Unavailable),
        (504, TimedOut),
    ],
)
def test_the_status_decides_which_error(asking: Asking, status: int, kind: type) -> None:
    with pytest.raises(ApiError, match=f"^{status} unknown: ") as refused:
        asking(httpx.Response(status, text="a proxy's page"), retries=ONCE).sentiment(["好"])
    assert type(refused.value) is kind


def test_an_error_survives_the_way_to_another_process(asking: Asking) -> None:
    """A pool of processes would break on an error that cannot be copied."""
    with pytest.raises(Unavailable) as refused:
        asking(busy("7"), retries=ONCE).sentiment(["好"])
    copy = pickle.loads(pickle.dumps(refused.value))
    assert type(copy) is Unavailable
    assert (str(copy), copy.retry_after) == (str(refused.value), 7)


def test_a_trace_in_progress_is_passed_on(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a span of OpenTelemetry is current; else no header is sent."""
    trace = pytest.importorskip("opentelemetry.trace", reason="pip install 'paddlepool[otel]'")
    monkeypatch.delitem(sys.modules, "opentelemetry.propagate", raising=False)
    monkeypatch.delattr("opentelemetry.propagate", raising=False)
    known = trace.SpanContext(0xAB, 0xCD, is_remote=False, trace_flags=trace.TraceFlags(1))
    server = asking(scores(), scores())
    with trace.use_span(trace.NonRecordingSpan(known)):
        server.sentiment(["好"])
    server.sentiment(["好"])
    sent = [request.headers.get("traceparent") for request in server.requests]
    assert sent == [f"00-{0xAB:032x}-{0xCD:016x}-01", None]
