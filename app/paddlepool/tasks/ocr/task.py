"""The declaration of the task `ocr`."""

from paddlepool.tasks.ocr.parts import DETECT, ORIENT, RECOGNISE
from paddlepool.tasks.ocr.pipeline import OcrPipeline
from paddlepool.tasks.ocr.request import OcrSettings, tensors
from paddlepool.tasks.ocr.router import build_router
from paddlepool.tasks.task import Task, offline
from paddlepool.tasks.transforms.agreement import answer_agreement

TASK = Task(
    build=lambda info, workers: OcrPipeline(info, codecs=workers.codec),
    endpoints=build_router,
    parts=(DETECT, RECOGNISE),
    optional_parts=(ORIENT,),
    settings=OcrSettings,
    tensors=tensors,
    agreement=lambda _info: answer_agreement,
    quality=offline("paddlepool.tasks.ocr.evaluation:OcrQuality"),
    warm_ups=("paddlepool.tasks.ocr.stages:warm_up",),
)
