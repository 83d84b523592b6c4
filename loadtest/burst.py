"""Simulate a burst of load with each of the chart's two autoscalers.

    .venv/bin/python loadtest/burst.py [--rate 12.2] [--start 15]

Two replicas can answer `--rate` requests per second each and get half of that. Then the load is
four times as high for half an hour. A new replica answers `--start` seconds after it is requested.
Each replica holds as many requests as a deadline of ten seconds allows and rejects others. Targets
and bounds come from values.yaml. Kubernetes checks every 15 s, with figures of the same age.
"""

import argparse
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from harness import ROOT
from pages import markdown_table

VALUES = ROOT / "deploy" / "helm" / "paddlepool" / "values.yaml"
CALM, BURST, AFTER = 120, 1800, 1200
"""Seconds."""
POLL_SECONDS = 15
DEADLINE_SECONDS = 10.0
TOLERANCE = 0.1
"""Kubernetes does not change the number of replicas if the figure is this close to its target."""


@dataclass(frozen=True, slots=True)
class Outcome:
    refused: float
    """Share of the requests that were rejected."""
    most: int
    """Maximum number of replicas."""
    hours: float
    """Replica hours beyond those without the burst."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The metrics that decide, and the steps: Kubernetes' defaults unless the chart sets them."""

    cpu: bool
    queue: bool
    pods: int = 2
    every: int = 30
    """Up to this many replicas more, or twice as many, within this many seconds."""
    down: int = 1
    """Up to this many replicas fewer within a minute."""

    def wanted(
        self, values: Mapping[str, Any], replicas: int, busy: float, waiting: float
    ) -> float:
        target = values["autoscaling"]["targetCPUUtilizationPercentage"] / 100
        by_cpu = replicas * busy / target if self.cpu else 0
        return max(by_cpu, waiting / values["keda"]["queueDepth"] if self.queue else 0)


POLICIES = {
    "CPU (`autoscaling`)": Policy(cpu=True, queue=False),
    "only the queue, with Kubernetes' default steps": Policy(
        False, True, pods=4, every=15, down=100
    ),
    "queue and CPU (`keda`)": Policy(cpu=True, queue=True),
}


def replay(policy: Policy, values: Mapping[str, Any], *, rate: float, start: int) -> Outcome:
    """Simulate each second as Kubernetes would decide."""
    scaling = values["autoscaling"]
    least, most = scaling["minReplicas"], scaling["maxReplicas"]
    window = scaling["scaleDownStabilizationSeconds"]
    asked = ready = peak = least
    waiting = refused = came = replica_seconds = 0.0
    starting: deque[int] = deque()
    seen: deque[tuple[float, float]] = deque(maxlen=POLL_SECONDS)
    advice: list[tuple[int, int]] = []
    raised: list[tuple[int, int]] = []
    lowered = 0
    for now in range(CALM + BURST + AFTER):
        while starting and starting[0] <= now:
            starting.popleft()
            ready += 1
        load = least * rate * (2.0 if CALM <= now < CALM + BURST else 0.5)
        done = min(waiting + load, ready * rate)
        waiting += load - done
        over = max(0.0, waiting - ready * rate * DEADLINE_SECONDS)
        waiting, refused, came = waiting - over, refused + over, came + load
        replica_seconds += asked - least
        seen.append((done / (ready * rate), waiting))
        if now % POLL_SECONDS:
            continue
        busy, queued = seen[0]
        figure = policy.wanted(values, ready, busy, queued)
        close = abs(figure / asked - 1) <= TOLERANCE
        advice.append((now, asked if close else math.ceil(figure)))
        advice = [(at, count) for at, count in advice if at >= now - window]
        raised = [(at, count) for at, count in raised if at > now - policy.every]
        before = asked - sum(count for _, count in raised)
        up = min(advice[-1][1], most, before + max(before, policy.pods))
        down = max(least, *(count for _, count in advice))
        if up > asked:
            raised.append((now, up - asked))
            starting.extend([now + start] * (up - asked))
            asked = up
        elif down < asked and now - lowered >= 60 and not starting:
            fewer = min(policy.down, asked - down)
            asked, ready, lowered = asked - fewer, ready - fewer, now
        peak = max(peak, asked)
    return Outcome(refused / came, peak, replica_seconds / 3600)


def table(values: Mapping[str, Any], *, rate: float, start: int) -> str:
    lines = []
    for name, policy in POLICIES.items():
        found = replay(policy, values, rate=rate, start=start)
        lines.append([name, f"{found.refused:.1%}", str(found.most), f"{found.hours:.2f}"])
    heads = ("scaled by", "rejected", "maximum replicas", "additional replica hours")
    return markdown_table(heads, lines, rule="---:")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=float, default=12.2, help="requests a second of a replica")
    parser.add_argument("--start", type=int, default=15, help="seconds until a replica answers")
    given = parser.parse_args()
    values = yaml.safe_load(VALUES.read_text("utf-8"))
    print(table(values, rate=given.rate, start=given.start))


if __name__ == "__main__":
    main()
