"""What one key, or one address, may take in a minute and at a time."""

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import APIRouter

from paddlepool.contracts.caller import CALLER
from paddlepool.contracts.errors import QuotaExceeded
from paddlepool.service.api.middleware.keys import client_network
from paddlepool.service.api.middleware.limits import MAX_CALLERS, TokenBucket, TokenBuckets
from paddlepool.settings.server import Settings
from tests.engine.fakes import ManualClock
from tests.service.api.fakes import Client, assert_problem, make_app, make_settings

JSON = {"text": "x"}


def app_of(*routers: APIRouter, **settings: Any) -> Client:
    return Client(make_app(*routers, settings=make_settings(**settings)))


def ask(client: Client, **headers: str) -> httpx.Response:
    return client.post("/sentiment", json=JSON, headers=headers)


def test_without_quotas_nothing_is_counted(client: Client) -> None:
    assert not [name for name in ask(client).headers if name.startswith("ratelimit")]


def test_a_key_that_has_had_its_share_gets_429() -> None:
    client = app_of(api_keys=("one", "two"), quota_requests_per_minute=2)
    replies = [ask(client, **{"X-Api-Key": "one"}) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    problem = assert_problem(replies[2], 429, "quota_exceeded")
    assert problem["limit"] == 2
    assert 25 <= int(replies[2].headers["retry-after"]) <= 30
    assert [reply.headers["ratelimit-remaining"] for reply in replies] == ["1", "0", "0"]
    assert {reply.headers["ratelimit-limit"] for reply in replies} == {"2"}
    assert 25 <= int(replies[0].headers["ratelimit-reset"]) <= 30
    assert ask(client, Authorization="Bearer two").status_code == 200


def test_probes_metrics_and_pages_are_free() -> None:
    client = app_of(quota_requests_per_minute=1)
    assert ask(client).status_code == 200
    assert ask(client).status_code == 429
    for path in ("/v2/health/live", "/v2/models/m1/ready", "/metrics", "/docs", "/"):
        assert client.get(path).status_code == 200, path
    assert client.post("/v2/repository/index").status_code == 403


def test_a_trusted_proxy_tells_the_address() -> None:
    """Each client behind it has a share; what a stranger writes into the header is not believed."""
    quota = {"quota_requests_per_minute": 1}
    trusting = app_of(trusted_proxies=("127.0.0.0/8",), **quota)
    statuses = [
        ask(trusting, **{"X-Forwarded-For": address}).status_code
        for address in ("192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.9, 192.0.2.2")
    ]
    assert statuses == [200, 200, 429, 429]
    wary = app_of(**quota)
    statuses = [ask(wary, **{"X-Forwarded-For": f"192.0.2.{n}"}).status_code for n in (1, 2)]
    assert statuses == [200, 429]


def test_an_ipv6_client_is_its_network() -> None:
    """Whoever has one address has 2^64 of them."""
    assert client_network("2001:db8::1") == client_network("2001:db8::ffff:1") == "2001:db8::/64"
    assert client_network("2001:db8:0:1::1") != client_network("2001:db8::1")
    assert client_network("192.0.2.1") == client_network("::ffff:192.0.2.1") == "192.0.2.1"
    assert client_network("no:address") == "no:address"


async def test_requests_at_one_time_are_limited() -> None:
    inside = 0
    gate, full = asyncio.Event(), asyncio.Event()
    router = APIRouter()

    async def wait() -> int:
        nonlocal inside
        inside += 1
        if inside == 2:
            full.set()
        await gate.wait()
        return inside

    router.add_api_route("/wait", wait, methods=["POST"])

    async with app_of(router, quota_concurrent_requests=2).session() as client:
        running = [asyncio.create_task(client.post("/wait")) for _ in range(2)]
        await full.wait()
        assert (await asyncio.wait_for(client.post("/wait"), 20)).status_code == 429
        gate.set()
        assert [(await request).status_code for request in running] == [200, 200]
        assert (await client.post("/wait")).status_code == 200


def test_what_a_request_costs_is_paid_off_before_the_next() -> None:
    """A picture of three minutes' pixels is granted once, and then three minutes' nothing."""
    clock = ManualClock()
    bucket = TokenBucket({"pixels": 1_000_000, "requests": 100}, clock=clock)
    with bucket.count_running():
        pass
    bucket.spend("pixels", 3_000_000)
    bucket.spend("texts", 10**9)  # not limited
    with (
        pytest.raises(QuotaExceeded, match="1000000 pixels a minute") as refused,
        bucket.count_running(),
    ):
        pass
    assert refused.value.retry_after == pytest.approx(120, abs=1)
    clock.advance(119)
    with pytest.raises(QuotaExceeded), bucket.count_running():
        pass
    clock.advance(2)
    with bucket.count_running():
        pass
    clock.advance(1_000)
    assert bucket.headers()["RateLimit-Remaining"] in ("1000000", "100")


def test_no_more_addresses_are_remembered_than_fit() -> None:
    buckets = TokenBuckets({"requests": 1})
    for number in range(MAX_CALLERS + 10):
        buckets.of(str(number))
    assert len(buckets._buckets) == MAX_CALLERS
    assert "0" not in buckets._buckets


def who(**settings: Any) -> Client:
    router = APIRouter()

    async def name() -> list[object]:
        return [CALLER.get().name, CALLER.get().may_start]

    router.add_api_route("/who", name, methods=["POST"])
    return Client(make_app(router, settings=Settings(**settings)))


def test_the_right_to_start_groups_is_a_keys() -> None:
    keyed = who(api_keys=("plain",), start_group_keys=("more",))
    assert keyed.post("/who").status_code == 401
    assert keyed.post("/who", headers={"X-Api-Key": "plain"}).json() == ["key 0", False]
    assert keyed.post("/who", headers={"X-Api-Key": "more"}).json() == ["key 1", True]
    opened = who(start_group_keys=("more",))
    assert opened.post("/who").json() == ["127.0.0.1", False]
    assert opened.post("/who", headers={"X-Api-Key": "wrong"}).json()[1] is False
    assert opened.post("/who", headers={"X-Api-Key": "more"}).json() == ["key 0", True]
    assert who().post("/who").json() == ["127.0.0.1", True]
