"""Ranges that were measured here and come with the package, for weights known by their sha256."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter

from app.programs.qdq import Ranges
from app.repository.manifest import Calibration, Derivation, MeasuredLoss

DIRECTORY = Path(__file__).parent / "ranges"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedRanges:
    """What `python -m training.u2netp.int8_ranges` wrote: ranges, and where they are from.

    `quality` was measured with them on data that they were not measured on.
    """

    weights_sha256: str
    derivation: Derivation
    calibration: Calibration
    quality: tuple[MeasuredLoss, ...]
    ranges: Ranges

    __pydantic_config__ = ConfigDict(extra="forbid")


PARSER = TypeAdapter(ShippedRanges)


def shipped_ranges(weights_sha256: str, directory: Path = DIRECTORY) -> ShippedRanges | None:
    """Those of the weights with this digest, if there are any."""
    for path in sorted(directory.glob("*.json")):
        found = PARSER.validate_json(path.read_bytes(), strict=True)
        if found.weights_sha256 == weights_sha256:
            return found
    return None
