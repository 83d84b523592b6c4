"""Requests of several callers in one event loop: whose goes on when."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.contracts.caller import CALLER, Caller
from app.turns import Turns


async def taken(turns: Turns, callers: Sequence[str], *, gone: Sequence[int] = ()) -> list[str]:
    """Who had a turn, in order, where all of them asked together; with "round" for each round of
    the loop. Those who are `gone` left before."""
    order: list[str] = []
    asked = len(callers) - len(gone)

    async def one(caller: str) -> None:
        CALLER.set(Caller(name=caller))
        await turns.mine()
        order.append(caller)

    waiting = [asyncio.create_task(one(caller)) for caller in callers]
    await asyncio.sleep(0)
    for number in gone:
        waiting[number].cancel()
    while sum(entry != "round" for entry in order) < asked and order.count("round") < 50:
        order.append("round")
        await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return order


def who(order: Sequence[str]) -> list[str]:
    return [entry for entry in order if entry != "round"]


def test_whoever_is_alone_waits_for_nothing() -> None:
    assert asyncio.run(taken(Turns(), ["a"])) == ["a"]


def test_callers_have_turns_one_after_the_other() -> None:
    """However many of one came before, and each caller's in their order."""
    order = asyncio.run(taken(Turns(), ["flood"] * 5 + ["quiet", "quiet", "other"]))
    assert who(order) == ["flood", "flood", "quiet", "other", "flood", "quiet", "flood", "flood"]


def test_the_loop_does_what_else_has_come_between_two_turns() -> None:
    order = asyncio.run(taken(Turns(), ["flood"] * 6))
    assert all("round" in pair for pair in itertools.pairwise(order))


def test_whoever_has_left_takes_no_turn() -> None:
    order = asyncio.run(taken(Turns(), ["flood"] * 4 + ["quiet"], gone=[1, 2]))
    assert who(order) == ["flood", "quiet", "flood"]
    assert order.count("round") <= 4


def test_turns_begin_anew_once_all_were_had() -> None:
    async def twice() -> None:
        turns = Turns()
        await taken(turns, ["a", "b", "a"])
        for _ in range(3):
            await asyncio.sleep(0)
        assert await taken(turns, ["a"]) == ["a"]

    asyncio.run(twice())


def test_another_event_loop_is_refused_rather_than_left_waiting() -> None:
    turns = Turns()

    def elsewhere() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, turns.mine()).result()

    async def here() -> None:
        await turns.mine()
        with pytest.raises(RuntimeError, match="another event loop"):
            elsewhere()  # while this loop stands, so that its round goes on

    asyncio.run(here())
