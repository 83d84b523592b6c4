"""The task of `POST /segment`: a picture in; its cut-out, mask or composite out.

`request` says what a client may ask for, `matte` is the arithmetic on masks, `stages` runs it in
codec processes, `pipeline` connects those to the engine, `router` is the endpoint.
Nothing is imported until a model or the server asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import APIRouter

    from app.contracts.ports import Pipeline, ServedModelInfo
    from app.contracts.tensors import Tensors
    from app.pipelines.segment.comparing import MaskComparison
    from app.pipelines.segment.quality import SegmentQuality
    from app.quality.ports import Source
    from app.workers import Workers


def build(info: ServedModelInfo, workers: Workers) -> Pipeline:
    """The pipeline of one model version; raises ConfigError when the model cannot do the task."""
    from app.pipelines.segment.pipeline import open_pipeline

    return open_pipeline(info, codecs=workers.codec)


def endpoints() -> APIRouter:
    """The endpoint of this task."""
    from app.pipelines.segment.router import build_router

    return build_router()


def comparison(info: ServedModelInfo) -> MaskComparison:
    """Inputs for `paddlepool compare`, and how far two predictors' outputs agree."""
    from app.pipelines.segment.comparing import MaskComparison

    return MaskComparison(info)


def agreement(info: ServedModelInfo) -> Callable[[Tensors, Tensors], float]:
    """How far two predictors' outputs mean the same; cheap enough for the API process."""
    from app.pipelines.segment.masks import MaskAgreement

    return MaskAgreement(info)


def quality(info: ServedModelInfo, source: Source) -> SegmentQuality:
    """What `paddlepool models verify --quality` measures; raises ConfigError without the data."""
    from app.pipelines.segment.quality import SegmentQuality

    return SegmentQuality(info, source)
