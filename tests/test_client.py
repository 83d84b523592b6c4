"""The client: what it sends, what it makes of replies, and when it tries again."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable

import httpx
import numpy as np
import pytest
from PIL import Image

from app.client import ApiError, AsyncClient, Client, Retries

PNG_HEADERS = {
    "content-type": "image/png",
    "x-foreground-top": "1",
    "x-foreground-left": "2",
    "x-foreground-width": "3",
    "x-foreground-height": "4",
    "x-model": "u2netp@1",
    "x-predictor": "onednn",
    "server-timing": "decode;dur=1.5, infer;dur=200.25",
}
EMOTIONS = [[{"label": "sad", "label_zh": "悲伤", "score": 0.75}]]


def png(picture: np.ndarray) -> bytes:
    encoded = io.BytesIO()
    Image.fromarray(picture).save(encoded, "png")
    return encoded.getvalue()


def answering(*responses: httpx.Response) -> tuple[httpx.MockTransport, list[httpx.Request]]:
    seen: list[httpx.Request] = []
    waiting = list(responses)

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return waiting.pop(0)

    return httpx.MockTransport(handle), seen


def busy(retry_after: str | None) -> httpx.Response:
    headers = {} if retry_after is None else {"retry-after": retry_after.encode("latin-1")}
    return httpx.Response(503, headers=headers, json={"code": "overloaded", "detail": "full"})


def test_segment_returns_the_picture_and_what_the_headers_say() -> None:
    """The array equals what the server encoded; box, model and timings come from the headers."""
    picture = np.arange(4 * 5 * 4, dtype=np.uint8).reshape(4, 5, 4)
    transport, seen = answering(httpx.Response(200, headers=PNG_HEADERS, content=png(picture)))
    with Client(transport=transport) as client:
        result = client.segment(np.zeros((4, 5, 3), np.uint8), crop=True)
    np.testing.assert_array_equal(result.picture, picture)
    assert result.foreground == (1, 2, 3, 4)
    assert result.model == "u2netp@1"
    assert result.timings == {"decode": 1.5, "infer": 200.25}
    assert seen[0].url.params["crop"] == "true"
    assert seen[0].content.startswith(b"\x89PNG")


def test_sentiment_returns_typed_emotions() -> None:
    """Each text's classes come back in the server's order."""
    transport, seen = answering(httpx.Response(200, json=EMOTIONS))
    with Client(transport=transport, api_key="k") as client:
        [[emotion]] = client.sentiment(["难过"])
    assert (emotion.label, emotion.label_zh, emotion.score) == ("sad", "悲伤", 0.75)
    assert seen[0].headers["authorization"] == "Bearer k"


def test_a_model_without_chinese_names_has_none() -> None:
    """They are optional in its config.toml."""
    transport, _ = answering(httpx.Response(200, json=[[{"label": "negative", "score": 0.75}]]))
    with Client(transport=transport) as client:
        [[emotion]] = client.sentiment(["难过"])
    assert (emotion.label, emotion.label_zh, emotion.score) == ("negative", None, 0.75)


def test_one_text_instead_of_a_list_is_a_type_error() -> None:
    """A bare string would otherwise be classified character by character."""
    with Client(transport=answering()[0]) as client, pytest.raises(TypeError, match="list"):
        client.sentiment("难过")


@pytest.mark.parametrize(
    ("retry_after", "accept"),
    [("3", lambda s: 3.0 <= s <= 3.75), (None, lambda s: 0.25 <= s <= 0.3125)],
    ids=["as the server asks", "own back-off"],
)
def test_busy_is_tried_again_after_the_right_time(
    retry_after: str | None, accept: Callable[[float], bool]
) -> None:
    """A 503 waits at least as long as Retry-After says, or the base of the back-off."""
    slept: list[float] = []
    transport, seen = answering(busy(retry_after), httpx.Response(200, json=EMOTIONS))
    with Client(transport=transport, sleep=slept.append) as client:
        client.sentiment(["好"])
    assert len(seen) == 2
    assert len(slept) == 1
    assert accept(slept[0])


@pytest.mark.parametrize("retry_after", ["31", "3600", "9" * 400])
def test_a_server_that_asks_for_long_is_not_waited_for(retry_after: str) -> None:
    """Nor asked sooner than it wants: the caller hears of it at once."""
    transport, seen = answering(busy(retry_after))
    with (
        Client(transport=transport, sleep=lambda _: pytest.fail("it waited")) as client,
        pytest.raises(ApiError) as refused,
    ):
        client.sentiment(["好"])
    assert refused.value.code == "overloaded"
    assert len(seen) == 1


def test_an_odd_retry_after_is_none() -> None:
    """A digit that is no number of seconds."""
    slept: list[float] = []
    transport, _ = answering(busy("\u00b2"), httpx.Response(200, json=EMOTIONS))
    with Client(transport=transport, sleep=slept.append) as client:
        client.sentiment(["好"])
    assert len(slept) == 1
    assert slept[0] < 1


def test_an_address_that_is_none_is_not_tried_again() -> None:
    """It stays wrong."""
    with (
        Client("nowhere://x", sleep=lambda _: pytest.fail("it waited")) as client,
        pytest.raises(httpx.UnsupportedProtocol),
    ):
        client.sentiment(["好"])


def test_the_last_refusal_is_raised_with_its_code() -> None:
    """When every attempt was refused the caller sees the server's own code."""
    transport, seen = answering(busy("1"), busy("1"))
    with (
        Client(transport=transport, retries=Retries(attempts=2), sleep=lambda _: None) as client,
        pytest.raises(ApiError) as refused,
    ):
        client.sentiment(["好"])
    assert (refused.value.status, refused.value.code) == (503, "overloaded")
    assert len(seen) == 2


def test_a_wrong_input_is_not_tried_again() -> None:
    """A 422 stays a 422, however often it is sent."""
    problem = {"code": "text_too_long", "detail": "2001", "limit": 2000, "received": 2001}
    transport, seen = answering(httpx.Response(422, json=problem))
    with Client(transport=transport) as client, pytest.raises(ApiError) as refused:
        client.sentiment(["长" * 2001])
    assert (refused.value.limit, refused.value.received) == (2000, 2001)
    assert len(seen) == 1


def test_a_lost_connection_is_tried_again() -> None:
    """A connection that breaks counts like a busy server."""
    outcomes: list[httpx.Response | Exception] = [
        httpx.ConnectError("refused"),
        httpx.Response(200, json=EMOTIONS),
    ]

    def handle(request: httpx.Request) -> httpx.Response:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    slept: list[float] = []
    with Client(transport=httpx.MockTransport(handle), sleep=slept.append) as client:
        assert client.sentiment(["好"])[0][0].label == "sad"
    assert len(slept) == 1


def test_the_async_client_does_the_same() -> None:
    """AsyncClient retries and parses as Client does."""
    transport, seen = answering(busy("0"), httpx.Response(200, json=EMOTIONS))

    async def scenario() -> None:
        async with AsyncClient(transport=transport) as client:
            assert (await client.sentiment(["好"]))[0][0].label == "sad"

    asyncio.run(scenario())
    assert len(seen) == 2
