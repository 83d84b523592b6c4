"""The declaration of the task `sentiment`."""

from paddlepool.tasks.sentiment.pipeline import (
    SentimentPipeline,
    SentimentSettings,
    label_agreement,
    label_slices,
    tensors,
)
from paddlepool.tasks.sentiment.router import build_router
from paddlepool.tasks.task import Task, offline

TASK = Task(
    build=lambda info, workers: SentimentPipeline(info, executor=workers.text),
    endpoints=build_router,
    settings=SentimentSettings,
    tensors=tensors,
    headers=("X-Truncated",),
    card=("labels", "labels_zh"),
    comparison=offline("paddlepool.tasks.sentiment.evaluation:LabelComparison"),
    agreement=lambda _: label_agreement,
    slices=label_slices,
    quality=offline("paddlepool.tasks.sentiment.evaluation:SentimentQuality"),
)
