"""Requests that come together begin by turns of their callers."""

from __future__ import annotations

import asyncio

import httpx
from fastapi import APIRouter, Request

from tests.api.fakes import make_app, make_settings


def test_a_flood_that_comes_at_once_is_not_begun_before_another_key_is_heard() -> None:
    router = APIRouter()
    begun: list[str] = []

    async def note(request: Request) -> None:
        begun.append(request.headers["x-api-key"])

    router.add_api_route("/note", note, methods=["POST"])
    app = make_app(router, settings=make_settings(api_keys="flood,quiet"))

    async def together() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            keys = ["flood"] * 9 + ["quiet"]
            sent = [client.post("/note", headers={"X-Api-Key": key}) for key in keys]
            assert {reply.status_code for reply in await asyncio.gather(*sent)} == {200}

    asyncio.run(together())
    assert begun.index("quiet") < 4
