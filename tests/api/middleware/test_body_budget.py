"""The memory that all request bodies together may hold, and who loses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from fastapi import APIRouter, Request

from app.api.middleware.body_budget import Arrival, BodyBudget
from app.application import build_gates
from app.contracts.errors import Overloaded
from app.resources import memory_limit
from tests.api.fakes import Client, assert_problem, make_app, make_settings


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def budget(clock: Clock) -> BodyBudget:
    return BodyBudget(100, clock=clock)


def begun(budget: BodyBudget, size: int = 0) -> Arrival:
    """A body that arrives outside any task."""
    arrival = budget.begin(0)
    arrival.task = None
    if size:
        budget.take(arrival, size)
    return arrival


def run(work: Callable[[], None]) -> None:
    """An arrival belongs to the task that began it."""

    async def inside() -> None:
        work()

    asyncio.run(inside())


def test_a_slow_body_loses_its_place_to_a_faster_one(budget: BodyBudget, clock: Clock) -> None:
    """What stopped coming two seconds ago is slower than anything that moves."""

    def work() -> None:
        stalled, moving = begun(budget, 60), begun(budget, 20)
        clock.now = 2.5
        budget.take(moving, 10)
        newcomer = begun(budget, 40)
        assert stalled.lost is not None
        assert stalled.lost.retry_after >= 1
        assert (moving.lost, newcomer.lost) == (None, None)
        assert budget.used == 70

    run(work)


def test_the_slowest_is_refused_itself(budget: BodyBudget) -> None:
    """A newcomer that is no faster than those who are there takes nobody's place."""

    def work() -> None:
        begun(budget, 50)
        begun(budget, 45)
        with pytest.raises(Overloaded, match="100 bytes"):
            begun(budget, 10)
        assert budget.used == 95

    run(work)


def test_what_came_whole_keeps_its_place(budget: BodyBudget, clock: Clock) -> None:
    """However long ago: work has begun on it."""

    def work() -> None:
        whole = begun(budget, 90)
        budget.finish(whole)
        clock.now = 60.0
        with pytest.raises(Overloaded):
            begun(budget, 20)
        with pytest.raises(Overloaded):
            budget.begin(11)  # announced: refused before it is sent
        assert whole.lost is None
        budget.end(whole)
        begun(budget, 100)
        assert budget.used == 100

    run(work)


def test_everything_is_given_back_once(budget: BodyBudget, clock: Clock) -> None:
    """Also by those who lost their place."""

    def work() -> None:
        first = begun(budget, 80)
        clock.now = 3.0
        second = begun(budget, 80)
        assert first.lost is not None
        for arrival in (first, second, second):
            budget.end(arrival)
        assert budget.used == 0

    run(work)


@pytest.mark.slow
def test_a_slow_bodys_request_gets_503_and_the_fast_one_its_answer() -> None:
    """Through the application, with the one that stalls holding all there is."""
    router = APIRouter()

    async def size(request: Request) -> int:
        return len(await request.body())

    router.add_api_route("/size", size, methods=["POST"], max_body_size=2_000)
    app = make_app(router, settings=make_settings(body_memory_bytes=1_000))

    async def scenario() -> tuple[httpx.Response, httpx.Response]:
        stalled, never = asyncio.Event(), asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"x" * 900
            stalled.set()
            await never.wait()

        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            waiting = asyncio.create_task(client.post("/size", content=slow()))
            await stalled.wait()
            await asyncio.sleep(2.1)  # two of its seconds
            fast = await client.post("/size", content=b"x" * 500)
            return await asyncio.wait_for(waiting, 5), fast

    slow, fast = asyncio.run(scenario())
    assert (fast.status_code, fast.json()) == (200, 500)
    assert slow.status_code == 503
    assert slow.json()["code"] == "overloaded"
    assert slow.headers["retry-after"] == "1"


def test_a_quarter_of_the_memory_unless_set() -> None:
    """The machine's, or the container's."""
    assert build_gates(make_settings(), ()).bodies.limit == memory_limit() // 4
    assert build_gates(make_settings(body_memory_bytes=1_000), ()).bodies.limit == 1_000


def test_a_body_larger_than_the_budget_is_413() -> None:
    """It could never be taken; 503 would have it sent again and again."""
    router = APIRouter()

    async def size(request: Request) -> int:
        return len(await request.body())

    router.add_api_route("/size", size, methods=["POST"], max_body_size=2_000)
    app = make_app(router, settings=make_settings(body_memory_bytes=1_000))
    problem = assert_problem(Client(app).post("/size", content=b"x" * 1_001), 413, "file_too_large")
    assert problem["limit"] == 1_000
