"""Load on /segment and /sentiment: users in steps or a spike, or arrivals at a constant rate.

A 503 means that the server sheds load as intended: it has its own row and is not a failure. Exit
code 1: an endpoint's p95 or its share of failures is above its limit.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

import gevent
from gevent.pool import Pool
from inputs import SENTENCES, draw_pictures
from locust import LoadTestShape, between, constant, events, task
from locust.argument_parser import LocustArgumentParser
from locust.contrib.fasthttp import FastHttpUser, ResponseContextManager
from locust.env import Environment
from plans import ARRIVALS, PLANS, users_at

PICTURES = draw_pictures()
SEGMENT, SENTIMENT, SHED = "/segment", "/sentiment", " (shed)"
LABELS = {"angry", "happy", "neutral", "surprise", "sad", "fear"}
TIMEOUT = 35.0  # slightly more than the longest deadline that the server allows


@events.init_command_line_parser.add_listener
def add_options(parser: LocustArgumentParser) -> None:
    def option(name: str, default: Any, text: str, **more: Any) -> None:
        variable = "LOAD_" + name.removeprefix("--").replace("-", "_").upper()
        parser.add_argument(
            name, type=type(default), default=default, help=text, env_var=variable, **more
        )

    option("--plan", "step", "how the load runs", choices=[*PLANS, ARRIVALS])
    option("--duration", 60.0, "seconds of load")
    option("--peak", 10, "most users at once, in the plans step and spike")
    option("--rate", 10.0, "requests a second, in the plan arrivals")
    option("--segment-share", 0.25, "share of /segment among the arrivals")
    option("--max-p95-segment", 3000.0, "milliseconds allowed for /segment")
    option("--max-p95-sentiment", 1000.0, "milliseconds allowed for /sentiment")
    option("--max-failures", 0.01, "share of answers that may be failures")


class PoolClient(FastHttpUser):
    """Sends one request and judges its reply."""

    abstract = True
    network_timeout = connection_timeout = TIMEOUT
    default_headers = (
        {"Authorization": f"Bearer {os.environ['LOAD_API_KEY']}"}
        if "LOAD_API_KEY" in os.environ
        else {}
    )

    def segment(self) -> None:
        picture = random.choice(PICTURES)
        output = random.choice(("mask", "cutout", "composite"))
        parameters = f"output={output}&format={'jpg' if output == 'composite' else 'webp'}"
        with self.client.post(
            f"{SEGMENT}?{parameters}",
            name=SEGMENT,
            data=picture.data,
            headers={"Content-Type": "image/jpeg"},
            catch_response=True,
        ) as reply:
            if accepted(reply, SEGMENT):
                size = (reply.headers.get("X-Width"), reply.headers.get("X-Height"))
                if size != (str(picture.width), str(picture.height)):
                    reply.failure(f"sent {picture.width} x {picture.height}, got {size}")

    def sentiment(self) -> None:
        texts = random.sample(SENTENCES, random.choice((1, 1, 1, 4)))
        with self.client.post(
            SENTIMENT, name=SENTIMENT, json={"inputs": texts}, catch_response=True
        ) as reply:
            if accepted(reply, SENTIMENT):
                labels = [{score["label"] for score in scores} for scores in reply.json()]
                if labels != [LABELS] * len(texts):
                    reply.failure(f"sent {len(texts)} texts, not six labels for each")


def accepted(reply: ResponseContextManager, name: str) -> bool:
    """Whether the reply is an answer; a 503 gets its own row, anything else is a failure."""
    if reply.status_code == 503:
        reply.request_meta["name"] = name + SHED
        reply.success()
    elif reply.status_code != 200:
        reply.failure(f"status {reply.status_code}")
    return reply.status_code == 200


class SegmentUser(PoolClient):
    weight = 1
    wait_time = between(0.1, 0.5)
    one = task(PoolClient.segment)


class SentimentUser(PoolClient):
    weight = 3
    wait_time = between(0.05, 0.3)
    one = task(PoolClient.sentiment)


class ArrivalUser(PoolClient):
    """One user that starts requests at fixed times and does not wait for replies."""

    concurrency = 1000
    wait_time = constant(0)

    def on_start(self) -> None:
        self.under_way = Pool(self.concurrency)
        self.due = time.perf_counter()

    @task
    def arrive(self) -> None:
        options = self.environment.parsed_options
        gevent.sleep(max(0.0, self.due - time.perf_counter()))
        self.due += 1 / options.rate
        if self.under_way.full():
            raise RuntimeError(f"{self.concurrency} requests are unanswered: lower --rate")
        to_segment = random.random() < options.segment_share
        self.under_way.spawn(self.segment if to_segment else self.sentiment)

    def on_stop(self) -> None:
        self.under_way.join(TIMEOUT)


class Load(LoadTestShape):
    """The chosen plan over the chosen time."""

    def tick(self) -> tuple[int, float, list[type[PoolClient]]] | None:
        options = self.runner.environment.parsed_options
        if options.plan == ARRIVALS:
            return None if self.get_run_time() >= options.duration else (1, 1, [ArrivalUser])
        users = users_at(
            self.get_run_time(), plan=options.plan, duration=options.duration, peak=options.peak
        )
        return None if users is None else (users, options.peak, [SegmentUser, SentimentUser])


@events.quitting.add_listener
def judge(environment: Environment, **_: Any) -> None:
    """Set the exit code, and print the criteria."""
    options = environment.parsed_options
    faults = []
    for name, limit in (
        (SEGMENT, options.max_p95_segment),
        (SENTIMENT, options.max_p95_sentiment),
    ):
        completed = environment.stats.get(name, "POST")
        shed = environment.stats.get(name + SHED, "POST").num_requests
        p95 = completed.get_response_time_percentile(0.95) or 0
        print(
            f"{name}: {completed.num_requests} answered, {shed} shed, "
            f"{completed.num_failures} failed, p95 {p95} ms (limit {limit:.0f})"
        )
        if not completed.num_requests:
            faults.append(f"{name} answered nothing")
        if p95 > limit:
            faults.append(f"{name} p95 {p95} ms is above {limit:.0f} ms")
        if completed.fail_ratio > options.max_failures:
            faults.append(f"{name} failed {completed.fail_ratio:.1%}")
    print("\n".join(faults) or "within the limits")
    environment.process_exit_code = 1 if faults else 0
