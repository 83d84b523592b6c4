"""The activation ranges that the package contains for official weights, in the folder `ranges`."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from paddlepool.making.programs.qdq import Ranges
from paddlepool.models.repository.manifest import Calibration, Derivation, MeasuredLoss, Strict

DIRECTORY = Path(__file__).parent / "ranges"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedRanges(Strict):
    """Ranges that the package contains for the weights with one sha256, and their origin.

    `python -m training.u2netp.int8_ranges` and `training.ocr.int8_ranges` measure them. `sealed`
    says that the layers have the names of a sealed program.
    """

    weights_sha256: str
    derivation: Derivation
    calibration: Calibration
    quality: tuple[MeasuredLoss, ...]
    ranges: Ranges
    sealed: bool = False


PARSER = TypeAdapter(ShippedRanges)


def shipped_ranges(weights_sha256: str) -> ShippedRanges | None:
    """Return the shipped ranges for the weights with this sha256; None if there are none."""
    for path in sorted(DIRECTORY.glob("*.json")):
        shipped = PARSER.validate_json(path.read_bytes(), strict=True)
        if shipped.weights_sha256 == weights_sha256:
            return shipped
    return None
