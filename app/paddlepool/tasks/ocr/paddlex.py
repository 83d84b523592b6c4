"""Translates requests and replies of PaddleX's basic serving, pipeline OCR.

Fields follow `paddlex/inference/serving/schemas/ocr.py` of PaddleX 3.7.2.
"""

from collections.abc import Mapping
from typing import Any

from paddlepool.contracts.errors import InvalidParameter
from paddlepool.tasks.ocr.request import MOST_SIDE, OcrResult, Page

PDF = 0
UNSUPPORTED = {
    "useDocUnwarping": "pages are not unwarped; leave it out",
    "useTextlineOrientation": "single lines are not turned; leave it out",
    "returnWordBox": "words have no boxes; leave it out",
}
"""Fields that may be false or null, with the reason why they may not be true."""


def options_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an OcrRequest for the fields of PaddleX's request.

    Other fields are ignored. As in PaddleX, null stands for the default, and so does 0 in a field
    named `textDet…` or `textRec…`. A `textDetLimitSideLen` from 1 to 31 counts as 32. Raises
    InvalidParameter for a wrong or unsupported value.
    """
    kind = document.get("fileType")
    if kind == PDF and kind is not None and kind is not False:
        raise _refused("fileType", "PDF files are not supported; send each page as a picture", 1)
    if kind not in (None, 1):
        raise _refused("fileType", "must be 1, a picture, or null", 1)
    for name, reason in UNSUPPORTED.items():
        if document.get(name) is True:
            raise _refused(name, reason, "false")
        _check(document, name, bool, "false or null")
    for name in ("useDocOrientationClassify", "visualize"):
        _check(document, name, bool, "true, false or null")
    kind = document.get("textDetLimitType") or None
    if kind not in (None, "min", "max"):
        raise _refused("textDetLimitType", "must be min, max or null", "min, max")
    limit = _number(document, "textDetLimitSideLen", MOST_SIDE)
    if limit is not None and limit != int(limit):
        raise _refused("textDetLimitSideLen", "must be a whole number", MOST_SIDE)
    values = {
        "limit": limit and max(32, int(limit)),
        "limit_type": kind,
        "thresh": _number(document, "textDetThresh", 1),
        "box_thresh": _number(document, "textDetBoxThresh", 1),
        "unclip_ratio": _number(document, "textDetUnclipRatio", 10),
        "min_score": _number(document, "textRecScoreThresh", 1),
        "orientation": document.get("useDocOrientationClassify"),
    }
    return {name: value for name, value in values.items() if value is not None}


def document_of(
    result: OcrResult, log_id: str, document: Mapping[str, Any], *, min_score: float
) -> dict[str, Any]:
    """Return PaddleX's reply to the request `document`; its members for pictures are null.

    `log_id` is used if the request's `logId` is no text or is empty; `min_score` is repeated in the
    reply.
    """
    turn = document.get("useDocOrientationClassify") is True
    text = document.get("logId")
    return {
        "logId": text if isinstance(text, str) and text else log_id,
        "errorCode": 0,
        "errorMsg": "Success",
        "result": {
            "ocrResults": [
                {
                    "prunedResult": _pruned(page, turn=turn, min_score=min_score),
                    "ocrImage": None,
                    "docPreprocessingImage": None,
                    "inputImage": None,
                }
                for page in result.pages
            ],
            "dataInfo": {
                "width": result.pages[0].width,
                "height": result.pages[0].height,
                "type": "image",
            },
        },
    }


def _pruned(page: Page, *, turn: bool, min_score: float) -> dict[str, Any]:
    boxes = [line.box for line in page.lines]
    xs, ys = ([[corner[axis] for corner in box] for box in boxes] for axis in (0, 1))
    settings = {"use_doc_preprocessor": turn, "use_textline_orientation": False}
    oriented = {
        "doc_preprocessor_res": {
            "model_settings": {"use_doc_orientation_classify": True, "use_doc_unwarping": False},
            "angle": page.angle,
        }
    }
    detection = page.detection
    return {
        "model_settings": settings,
        **(oriented if turn else {}),
        "dt_polys": page.boxes,
        "text_det_params": {
            "limit_side_len": detection["limit"],
            "limit_type": detection["limit_type"],
            "thresh": detection["thresh"],
            "max_side_limit": detection["most_side"],
            "box_thresh": detection["box_thresh"],
            "unclip_ratio": detection["unclip_ratio"],
        },
        "text_type": "general",
        "textline_orientation_angles": [-1] * len(page.boxes),
        "text_rec_score_thresh": min_score,
        "return_word_box": False,
        "rec_texts": [line.text for line in page.lines],
        "rec_scores": [line.score for line in page.lines],
        "rec_polys": boxes,
        "rec_boxes": [[min(x), min(y), max(x), max(y)] for x, y in zip(xs, ys, strict=True)],
    }


def _number(document: Mapping[str, Any], name: str, most: float) -> float | None:
    """Return the field `name`, a number up to `most`; None if it is 0, null or missing.

    Raises InvalidParameter for another value.
    """
    value = document.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= most:
        raise _refused(name, f"must be a number from 0 to {most}, or null", most)
    return value or None


def _check(document: Mapping[str, Any], name: str, kind: type, expected: str) -> None:
    if not isinstance(document.get(name), kind | None):
        raise _refused(name, f"must be {expected}", expected)


def _refused(name: str, reason: str, limit: float | str) -> InvalidParameter:
    return InvalidParameter(
        f"{name}: {reason}",
        parameter=name,
        limit=limit,
        errors=({"field": f"body.{name}", "message": reason},),
    )
