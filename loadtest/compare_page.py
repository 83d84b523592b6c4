"""What an open /compare costs users: latencies with it and without it, interleaved in one run.

    .venv/bin/python loadtest/compare_page.py [--pages N] [--browser] [--cores N] [--json FILE]

One server and the same users throughout (one for pictures, one for texts). In every second phase
somebody looks at /compare: a client that asks what the page asks, as often as it does (the whole
history first, then every two seconds what is new). With `--browser` it is the page itself in
Chromium, which then takes its part of this machine as well; whoever looks from elsewhere does not.
Exit code 1 when a p99 with the page open is more than 5 % above that without.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from harness import Connection, Server, request, running_server
from interleaved_runs import MODES, run, show_table, single_row_cases, summary, users
from tqdm import tqdm

LIMIT = 1.05
EVERY_SECONDS = 2.0
"""As in app/api/static/comparison/feed.js."""

INFO_SECONDS = 20.0
"""As in app/api/static/console/server.js."""

PAUSE = {"segment": 0.05, "sentiment": 0.05}
"""Mean seconds between a user's requests, drawn from an exponential distribution."""


def look(server: Server, stop: threading.Event) -> list[tuple[float, int]]:
    """Ask as an open page does until `stop`: seconds and bytes of each answer."""
    answers, after, informed = [], -1, float("-inf")
    with contextlib.closing(Connection(server.port)) as connection:
        while not stop.is_set():
            if time.monotonic() - informed >= INFO_SECONDS:
                connection.send(request("GET", "/info"))
                informed = time.monotonic()
            reply = connection.send(request("GET", f"/compare/data?window=10m&after={after}"))
            if reply.status != 200:
                raise RuntimeError(f"/compare/data answered {reply.status}")
            after = json.loads(reply.body)["interval"] - 1
            answers.append((reply.seconds, len(reply.body)))
            stop.wait(EVERY_SECONDS)
    return answers


@contextlib.contextmanager
def asking(server: Server, pages: int) -> Iterator[list[tuple[float, int]]]:
    """`pages` clients that ask as the page does; the list is complete at the end."""
    stop = threading.Event()
    answers: list[tuple[float, int]] = []
    with ThreadPoolExecutor(max(pages, 1)) as threads:
        looking = [threads.submit(look, server, stop) for _ in range(pages)]
        try:
            yield answers
        finally:
            stop.set()
        for each in looking:
            answers += each.result()


@contextlib.contextmanager
def in_browser(server: Server, pages: int) -> Iterator[list[tuple[float, int]]]:
    """The page itself in headless Chromium, `pages` times."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(pages):
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{server.port}/compare")
            page.wait_for_selector("#overlay canvas")
        yield []
        browser.close()


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    cases = single_row_cases(arguments.repository)
    working = [
        (case, PAUSE["segment" if "segment" in case.name else "sentiment"]) for case in cases
    ]
    found: dict[str, dict[str, list[list[float]]]] = {
        case.name: {mode: [] for mode in MODES} for case in cases
    }
    opened = in_browser if arguments.browser else asking
    answers: list[tuple[float, int]] = []
    with running_server(arguments.repository) as server:
        with users(server, working, seed=0):  # warms everything up
            time.sleep(2.0)
        for number in tqdm(range(arguments.rounds), unit="round", disable=None):
            for mode in MODES if number % 2 == 0 else reversed(MODES):
                with (
                    opened(server, arguments.pages if mode == "on" else 0) as told,
                    users(server, working, seed=number) as answered,
                ):
                    time.sleep(arguments.seconds)
                answers += told
                for case, taken in zip(cases, answered, strict=True):
                    found[case.name][mode].append([each.seconds for each in taken])
    return {
        "pages": arguments.pages,
        "browser": arguments.browser,
        "asked": len(answers),
        "answer_seconds": statistics.median(s for s, _ in answers) if answers else None,
        "answer_bytes": statistics.median(size for _, size in answers) if answers else None,
        "latency": {name: summary(phases) for name, phases in found.items()},
    }


def show(report: Mapping[str, Any]) -> bool:
    """Print the table; whether the target is met."""
    how = "in Chromium on this machine" if report["browser"] else "asked as the page asks"
    print(f"{report['cores']} cores, {report['pages']} x /compare open, {how}:")
    if report["asked"]:
        milliseconds, size = 1000 * report["answer_seconds"], report["answer_bytes"]
        print(f"    {report['asked']} answers of {size:.0f} bytes, median {milliseconds:.1f} ms")
    show_table(report["latency"])
    met = True
    for name, found in report["latency"].items():
        p99 = found["p99"]
        kept = p99["ratio"] <= LIMIT
        met = met and kept
        print(
            f"{'met   ' if kept else 'MISSED'} {name}: p99 with the page open {p99['ratio']:.3f}"
            f" ({p99['ratio_low']:.3f} to {p99['ratio_high']:.3f}) of that without,"
            f" at most {LIMIT}"
        )
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pages", type=int, default=1, help="how many people look")
    parser.add_argument("--browser", action="store_true", help="with Chromium, on this machine")
    run(parser, seconds=10.0, rounds=12, measure=measure, show=show)


if __name__ == "__main__":
    main()
