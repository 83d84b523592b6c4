"""Results of the client's methods, parsed from replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from typing_extensions import Self  # in `typing` from Python 3.11 on


@dataclass(frozen=True, slots=True, kw_only=True)
class Segmentation:
    """An encoded result of `/segment`: `content` is the file, `content_type` its media type.

    A notebook shows a PNG or JPEG as a picture.

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
        """Write `content` to a file; the path's suffix does not change the format.

        Raises OSError if it cannot be written.
        """
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
        """Return the emotions of each text from a reply.

        Raises ValueError unless there is one list for each text.
        """
        lists = response.json()
        if len(lists) != texts:
            raise ValueError(f"{len(lists)} results of {texts} texts")
        return [
            [cls(emotion["label"], emotion.get("label_zh"), emotion["score"]) for emotion in one]
            for one in lists
        ]


@dataclass(frozen=True, slots=True)
class Label:
    """One class of a picture, with its number in the model's output and its score from 0 to 1."""

    label: str
    class_id: int
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """The labels of a picture, best first.

    `size` is (width, height) of the upright picture in pixels. `timings` are milliseconds by stage.
    """

    labels: tuple[Label, ...]
    size: tuple[int, int]
    model: str
    predictor: str
    request_id: str | None
    timings: Mapping[str, float]

    @classmethod
    def of(cls, response: httpx.Response) -> Self:
        body = response.json()
        return cls(
            labels=tuple(
                Label(label["label"], label["class_id"], label["score"]) for label in body["labels"]
            ),
            size=(body["width"], body["height"]),
            **_origin(response, body),
        )


@dataclass(frozen=True, slots=True)
class OcrLine:
    """A line of text, its score from 0 to 1, and its `box`.

    `box` has the corners (x, y) clockwise from the top left of the text, in pixels of the page.
    """

    text: str
    score: float
    box: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OcrPage:
    """The lines of a page in reading order.

    `size` is (width, height) in pixels. The server turned the picture by `angle` degrees
    anticlockwise (0, 90, 180 or 270), and `size` and boxes are those of the turned picture.
    """

    size: tuple[int, int]
    angle: int
    lines: tuple[OcrLine, ...]

    @property
    def text(self) -> str:
        """The lines, each on a line of its own."""
        return "\n".join(line.text for line in self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class OcrResult:
    """The pages of all pictures, in order. `timings` are milliseconds by stage."""

    pages: tuple[OcrPage, ...]
    model: str
    predictor: str
    request_id: str | None
    timings: Mapping[str, float]

    @property
    def text(self) -> str:
        """The text of all pages, with an empty line between pages."""
        return "\n\n".join(page.text for page in self.pages)

    @classmethod
    def of(cls, response: httpx.Response, *, pictures: int) -> Self:
        """Return the result from a reply. Raises ValueError if `pages` are fewer than pictures."""
        body = response.json()
        pages = tuple(
            OcrPage(
                size=(page["width"], page["height"]),
                angle=page["angle"],
                lines=tuple(
                    OcrLine(line["text"], line["score"], tuple((x, y) for x, y in line["box"]))
                    for line in page["lines"]
                ),
            )
            for page in body["pages"]
        )
        if len(pages) < pictures:
            raise ValueError(f"{len(pages)} pages of {pictures} pictures")
        return cls(pages=pages, **_origin(response, body))


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One version of a model in the server's repository.

    `state` is READY, LOADING or UNAVAILABLE, and `reason` says why it is not ready. `task` is the
    task that uses it. `predictors` are its instance groups, which the option `predictor` names;
    info() says which are ready, and why the others are not. A member is None if the model has no
    such value, or while the version is not served.
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


def _origin(response: httpx.Response, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that Classification and OcrResult have in common."""
    headers = response.headers
    return {
        "model": f"{body['model']}@{body['version']}",
        "predictor": headers["x-predictor"],
        "request_id": headers.get("x-request-id"),
        "timings": _timings(headers.get("server-timing", "")),
    }


def _timings(header: str) -> dict[str, float]:
    """Parse a header such as `decode;dur=1.5, infer;dur=200` to milliseconds by stage."""
    parts = (part.strip().partition(";dur=") for part in header.split(","))
    return {stage: float(duration) for stage, _, duration in parts if duration}
