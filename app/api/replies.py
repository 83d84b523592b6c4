"""Headers of every task's reply: the origin of the answer and its times."""

from __future__ import annotations

from collections.abc import Mapping

from app.dataplane import Answer


def server_timing(stages: Mapping[str, float]) -> str:
    """The W3C Server-Timing header; `stages` in seconds, the header in milliseconds."""
    return ", ".join(f"{name};dur={seconds * 1000:.2f}" for name, seconds in stages.items())


def answer_headers(answer: Answer) -> dict[str, str]:
    """X-Model, X-Predictor and Server-Timing of an answered request."""
    return {
        "X-Model": f"{answer.model}@{answer.version}",
        "X-Predictor": answer.group,
        "Server-Timing": server_timing(answer.stages),
    }
