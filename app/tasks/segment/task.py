"""The declaration of this task."""

from app.tasks.segment.pipeline import SegmentPipeline, mask_agreement
from app.tasks.segment.request import SegmentSettings, tensors
from app.tasks.segment.router import build_router
from app.tasks.task import Task, offline

TASK = Task(
    build=lambda info, workers: SegmentPipeline(info, codecs=workers.codec),
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
    warm_ups=("app.tasks.segment.stages:warm_up",),
    comparison=offline("app.tasks.segment.evaluation:MaskComparison"),
    agreement=mask_agreement,
    quality=offline("app.tasks.segment.evaluation:SegmentQuality"),
)
