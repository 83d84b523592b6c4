"""The declaration of the task `segment`."""

from paddlepool.tasks.segment.pipeline import SegmentPipeline, mask_agreement, mask_slices
from paddlepool.tasks.segment.request import SegmentSettings, tensors
from paddlepool.tasks.segment.router import build_router
from paddlepool.tasks.task import Task, offline

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
    card=("labels",),
    warm_ups=("paddlepool.tasks.segment.stages:warm_up",),
    comparison=offline("paddlepool.tasks.segment.evaluation:MaskComparison"),
    agreement=mask_agreement,
    slices=mask_slices,
    quality=offline("paddlepool.tasks.segment.evaluation:segment_quality"),
)
