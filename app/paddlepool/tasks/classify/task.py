"""The declaration of the task `classify`."""

from paddlepool.tasks.classify.pipeline import (
    ClassifyPipeline,
    ClassifySettings,
    label_agreement,
    label_slices,
    tensors,
)
from paddlepool.tasks.classify.router import build_router
from paddlepool.tasks.task import Task, offline

TASK = Task(
    build=lambda info, workers: ClassifyPipeline(info, codecs=workers.codec),
    endpoints=build_router,
    settings=ClassifySettings,
    tensors=tensors,
    card=("labels",),
    warm_ups=("paddlepool.tasks.classify.stages:warm_up",),
    comparison=offline("paddlepool.tasks.classify.evaluation:LabelComparison"),
    agreement=label_agreement,
    slices=label_slices,
)
