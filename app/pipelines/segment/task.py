"""The declaration of this task."""

from __future__ import annotations

from app.pipelines.segment.parameters import MaskAgreement
from app.pipelines.segment.pipeline import open_pipeline
from app.pipelines.segment.router import build_router
from app.pipelines.segment.settings import SegmentSettings
from app.pipelines.segment.tensors import tensors
from app.pipelines.task import Task, offline

TASK = Task(
    build=lambda info, workers: open_pipeline(info, codecs=workers.codec),
    endpoints=build_router,
    settings=SegmentSettings,
    tensors=tensors,
    headers=(
        "X-Width",
        "X-Height",
        "X-Foreground-Top",
        "X-Foreground-Left",
        "X-Foreground-Width",
        "X-Foreground-Height",
        "Content-Disposition",
    ),
    warm_ups=("app.pipelines.segment.stages:warm_up",),
    comparison=offline("app.pipelines.segment.evaluation:MaskComparison"),
    agreement=MaskAgreement,
    quality=offline("app.pipelines.segment.evaluation:SegmentQuality"),
)
