"""Results of the client's methods, parsed from replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from typing_extensions import Self  # in `typing` from Python 3.11 on


@dataclass(frozen=True, slots=True, kw_only=True)
class Segmentation:
    """An encoded cut-out, mask or composite: `content` is the file, `content_type` its format.

    A notebook shows it as a picture.

    `size` is (width, height) of the result in pixels. `foreground` is (top, left, width, height) in
    the upright, uncropped picture; all 0 without a foreground. `timings` are milliseconds by stage.
    """

    content: bytes = field(repr=False)
    content_type: str
    size: tuple[int, int]
    foreground: tuple[int, int, int, int]
    model: str
    predictor: str
    request_id: str | None
    timings: Mapping[str, float]

    @classmethod
    def of(cls, response: httpx.Response) -> Self:
        headers = response.headers
        top, left, width, height = (
            int(headers[f"x-foreground-{side}"]) for side in ("top", "left", "width", "height")
        )
        return cls(
            content=response.content,
            content_type=headers["content-type"],
            size=(int(headers["x-width"]), int(headers["x-height"])),
            foreground=(top, left, width, height),
            model=headers["x-model"],
            predictor=headers["x-predictor"],
            request_id=headers.get("x-request-id"),
            timings=_timings(headers.get("server-timing", "")),
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write the file as it came, whatever the path's suffix. Raises OSError."""
        Path(path).write_bytes(self.content)

    def _repr_png_(self) -> bytes | None:
        return self.content if self.content_type == "image/png" else None

    def _repr_jpeg_(self) -> bytes | None:
        return self.content if self.content_type == "image/jpeg" else None


@dataclass(frozen=True, slots=True)
class Emotion:
    """One class of one text; `score` is a probability, and all classes sum to 1.

    `label_zh` is None if the model has no Chinese names.
    """

    label: str
    label_zh: str | None
    score: float

    @classmethod
    def lists_of(cls, response: httpx.Response, *, texts: int) -> list[list[Self]]:
        """Raises ValueError unless there is one list for each text."""
        lists = response.json()
        if len(lists) != texts:
            raise ValueError(f"{len(lists)} results of {texts} texts")
        return [
            [cls(emotion["label"], emotion.get("label_zh"), emotion["score"]) for emotion in one]
            for one in lists
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of the server's repository; None members are unknown until it is ready.

    `state` is READY, LOADING or UNAVAILABLE, and `reason` says why it is not ready. `task` is the
    endpoint that uses it, if any. `predictors` are the valid values of the option `predictor`;
    info() says which are ready, and why the others are not.
    """

    name: str
    version: int | None
    state: str
    reason: str | None
    task: str | None
    labels: tuple[str, ...] | None
    predictors: tuple[str, ...] | None

    @classmethod
    def list_of(cls, response: httpx.Response) -> list[Self]:
        return [
            cls(
                name=model["name"],
                version=model["version"],
                state=model["state"],
                reason=model["reason"],
                task=model["task"],
                labels=None if model["labels"] is None else tuple(model["labels"]),
                predictors=None
                if model["predictors"] is None
                else tuple(predictor["name"] for predictor in model["predictors"]),
            )
            for model in response.json()["models"]
        ]


def _timings(header: str) -> dict[str, float]:
    """`decode;dur=1.5, infer;dur=200` as a mapping."""
    parts = (part.strip().partition(";dur=") for part in header.split(","))
    return {stage: float(duration) for stage, _, duration in parts if duration}
