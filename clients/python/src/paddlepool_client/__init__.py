"""Client of a Paddlepool server: blocking `Client` and async `AsyncClient`; needs only httpx."""

from paddlepool_client.calls import (
    ClassifyOptions,
    OcrOptions,
    SegmentOptions,
    SentimentOptions,
    Source,
)
from paddlepool_client.client import AsyncClient, Client
from paddlepool_client.errors import (
    ApiError,
    InvalidReply,
    InvalidRequest,
    RequestFailed,
    ServerFault,
    TimedOut,
    Unauthorized,
    Unavailable,
    Unreachable,
)
from paddlepool_client.exchange import Retries
from paddlepool_client.results import (
    Classification,
    Emotion,
    Label,
    Model,
    OcrLine,
    OcrPage,
    OcrResult,
    Segmentation,
)

__all__ = [
    "ApiError",
    "AsyncClient",
    "Classification",
    "ClassifyOptions",
    "Client",
    "Emotion",
    "InvalidReply",
    "InvalidRequest",
    "Label",
    "Model",
    "OcrLine",
    "OcrOptions",
    "OcrPage",
    "OcrResult",
    "RequestFailed",
    "Retries",
    "SegmentOptions",
    "Segmentation",
    "SentimentOptions",
    "ServerFault",
    "Source",
    "TimedOut",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
]

__version__ = "1.0.0"
