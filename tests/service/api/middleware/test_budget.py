"""The memory that all request bodies together may hold."""

import asyncio
from collections.abc import AsyncIterator

import httpx
from fastapi import APIRouter, FastAPI, Request

from tests.service.api.fakes import Client, assert_problem, make_app, make_settings


def sized() -> FastAPI:
    """`/size` takes 2,000 bytes, all bodies together 1,000."""
    router = APIRouter()

    async def size(request: Request) -> int:
        return len(await request.body())

    router.add_api_route("/size", size, methods=["POST"], max_body_size=2_000)
    return make_app(router, settings=make_settings(body_memory_bytes=1_000))


def test_a_body_that_finds_no_room_gets_503() -> None:
    app = sized()

    async def scenario() -> tuple[httpx.Response, ...]:
        held, rest = asyncio.Event(), asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"x" * 600
            held.set()
            await rest.wait()
            yield b"x" * 400

        async def in_parts() -> AsyncIterator[bytes]:
            for _ in range(5):
                yield b"x" * 100

        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            waiting = asyncio.create_task(client.post("/size", content=slow()))
            await held.wait()
            refused = await client.post("/size", content=in_parts())
            fits = await client.post("/size", content=b"x" * 400)
            rest.set()
            return refused, fits, await asyncio.wait_for(waiting, 20)

    refused, *answered = asyncio.run(scenario())
    assert [reply.json() for reply in answered] == [400, 1_000]
    assert_problem(refused, 503, "overloaded")
    assert refused.headers["retry-after"] == "1"


def test_a_body_larger_than_the_budget_is_413() -> None:
    """It could never be taken; 503 would have it sent again and again."""
    problem = assert_problem(
        Client(sized()).post("/size", content=b"x" * 1_001), 413, "file_too_large"
    )
    assert problem["limit"] == 1_000
