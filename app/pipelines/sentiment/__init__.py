"""The task of `POST /sentiment`: texts in, labels with scores out.

`texts` says which texts are accepted, `pipeline` turns them into engine jobs and scores,
`router` is the endpoint. Nothing is imported until a model or the server asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import APIRouter

    from app.contracts.ports import Pipeline, ServedModelInfo
    from app.contracts.tensors import Tensors
    from app.pipelines.sentiment.comparing import LabelComparison
    from app.pipelines.sentiment.quality import SentimentQuality
    from app.quality.ports import Source
    from app.workers import Workers


def build(info: ServedModelInfo, workers: Workers) -> Pipeline:
    """The pipeline of one model version; raises ConfigError when the model cannot do the task."""
    from app.pipelines.sentiment.pipeline import open_pipeline

    return open_pipeline(info, executor=workers.text)


def endpoints() -> APIRouter:
    """The endpoint of this task."""
    from app.pipelines.sentiment.router import build_router

    return build_router()


def comparison(info: ServedModelInfo) -> LabelComparison:
    """Inputs for `paddlepool compare`, and how far two predictors' outputs agree."""
    from app.pipelines.sentiment.comparing import LabelComparison

    return LabelComparison(info)


def agreement(info: ServedModelInfo) -> Callable[[Tensors, Tensors], float]:
    """How far two predictors' outputs mean the same; cheap enough for the API process."""
    from app.pipelines.sentiment.labels import label_agreement

    del info  # the same for every model of this task
    return label_agreement


def quality(info: ServedModelInfo, source: Source) -> SentimentQuality:
    """What `paddlepool models verify --quality` measures; raises ConfigError without the data."""
    from app.pipelines.sentiment.quality import SentimentQuality

    return SentimentQuality(info, source)
