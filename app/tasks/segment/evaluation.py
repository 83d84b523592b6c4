"""The task for offline commands: inputs to compare, agreement, and quality of masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import cv2
import numpy as np

from app.contracts.errors import ConfigError, InputError
from app.contracts.ports import ServedModelInfo
from app.contracts.tensors import Tensors
from app.evidence.quality import masks
from app.evidence.quality.masks import BASELINES
from app.evidence.quality.ports import Bench, Findings, Source, Table, folder, read_bytes
from app.tasks.codecs.decode import decode
from app.tasks.codecs.limits import PictureLimits
from app.tasks.codecs.picture import Pixels
from app.tasks.segment import matte
from app.tasks.segment.parameters import MaskAgreement, mask_output, read_parameters

SIDE = 320
"""Masks are compared at this size, whatever the size of the network's own."""
VALIDATION_EVERY = 10
"""Every tenth pair by sorted name, from the first, is for validation. Training never sees it."""
PARTS = {"ecssd": "ECSSD", "pascals": "PASCAL-S"}
"""Origin of a pair, by the prefix of its name."""

Array = TypeVar("Array", Pixels, matte.Floats)


@dataclass(frozen=True, slots=True)
class Pair:
    """A picture (H, W, 3) and its expected mask (H, W), both uint8."""

    name: str
    picture: Pixels
    mask: Pixels


class SegmentQuality:
    """Measures a model on pictures with known masks.

    The constructor reads the pairs. It raises ConfigError if the validation pairs are absent.
    """

    def __init__(self, info: ServedModelInfo, source: Source) -> None:
        self._parameters = read_parameters(info)
        self._input = info.inputs[0].name
        self._output = mask_output(info, self._parameters).name
        self._pairs = _validation_pairs(source.data / "sod_train", source.limit)
        golden = source.data / "u2net_golden"
        self._golden = _golden_pairs(golden, source.limit) if golden.is_dir() else []

    def measure(self, bench: Bench) -> Findings:
        tables = [self._validation(bench)]
        if not self._golden:
            return Findings(
                tables=tuple(tables),
                notes=("NOT MEASURED: the official masks (u2net_golden) are not among the data",),
            )
        return Findings(tables=(*tables, self._official(bench)))

    def _validation(self, bench: Bench) -> Table:
        raw = [_sized(mask) for mask in self._masks(self._pairs, bench, "validation pairs")]
        served = [matte.normalise(mask) for mask in raw]
        rows = [_row("served mask", self._pairs, served)]
        for prefix, name in PARTS.items():
            part = [n for n, pair in enumerate(self._pairs) if pair.name.startswith(prefix)]
            if part:
                pairs, found = [self._pairs[n] for n in part], [served[n] for n in part]
                rows.append(_row(f"served mask, {name} pairs", pairs, found))
        rows.append(_row("the network's own map, not stretched", self._pairs, raw))
        baseline: Callable[[Pixels], masks.Map]
        for name, baseline in BASELINES.items():
            found = [baseline(pair.picture) for pair in bench.each(self._pairs, what=name)]
            rows.append(_row(name, self._pairs, found))
        return Table(
            key="validation",
            title=f"Every tenth pair of sod_train, masks at {SIDE} × {SIDE}",
            columns=("pairs", "MAE", "max-F", "IoU@0.5"),
            rows=tuple(rows),
        )

    def _official(self, bench: Bench) -> Table:
        errors = []
        found = self._masks(self._golden, bench, "official masks")
        for pair, mask in zip(self._golden, found, strict=True):
            height, width = pair.mask.shape
            alpha = matte.plain_alpha(matte.normalise(mask), width, height)
            errors.append(float(np.abs(alpha.astype(np.float64) - pair.mask).mean() / 255))
        return Table(
            key="official",
            title="Distance from the masks of the official release, at the picture's size",
            columns=("pictures", "mean MAE", "worst MAE"),
            rows=(("served mask", (len(errors), float(np.mean(errors)), max(errors))),),
        )

    def _masks(self, pairs: Sequence[Pair], bench: Bench, what: str) -> list[matte.Floats]:
        wanted = self._parameters
        jobs: list[Tensors] = [
            {self._input: matte.network_input(p.picture, wanted.size, wanted.mean, wanted.std)}
            for p in pairs
        ]
        outputs = bench.run(jobs, what=what)
        return [np.asarray(output[self._output], np.float32)[0, 0] for output in outputs]


def _row(
    name: str, pairs: Sequence[Pair], found: Sequence[masks.Map]
) -> tuple[str, tuple[int, float, float, float]]:
    quality = masks.measure(found, [pair.mask for pair in pairs])
    return name, (quality.pictures, quality.mae, quality.max_f, quality.iou)


def _validation_pairs(root: Path, limit: int | None) -> list[Pair]:
    names = sorted(path.stem for path in folder(root / "images").glob("*.jpg"))
    if not names:
        raise ConfigError(f"data absent: {root / 'images'} holds no .jpg")
    return [
        Pair(
            name,
            _sized(_picture(root / "images" / f"{name}.jpg")),
            _sized(_picture(root / "masks" / f"{name}.png")[..., 0]),
        )
        for name in names[::VALIDATION_EVERY][:limit]
    ]


def _golden_pairs(root: Path, limit: int | None) -> list[Pair]:
    """Pictures of any size, with the masks of the official release in the picture's size."""
    files = sorted(path for path in folder(root / "images").iterdir() if path.is_file())
    return [
        Pair(path.name, _picture(path), _picture(root / "masks" / f"{path.stem}.png")[..., 0])
        for path in files[:limit]
    ]


def _picture(path: Path) -> Pixels:
    """Read a picture as serving does: (H, W, 3), transparency over white."""
    try:
        return matte.over_white(decode(read_bytes(path), PictureLimits()))
    except InputError as error:
        raise ConfigError(f"{path}: {error.message}") from error


def _sized(array: Array) -> Array:
    if array.shape[:2] == (SIDE, SIDE):
        return array
    resized: Array = cv2.resize(array, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
    return resized


class MaskComparison:
    """Samples are (name, tensors); agreement is the intersection over union of two masks."""

    agreement_name = "mask IoU"
    least_agreement = 0.9  # a picture may contain no object

    def __init__(self, info: ServedModelInfo) -> None:
        self._parameters = read_parameters(info)
        self._input = info.inputs[0].name
        self.agreement = MaskAgreement(info)

    def samples(self, files: Sequence[Path]) -> list[tuple[str, Tensors]]:
        """One sample per picture.

        Raises ConfigError for a file that cannot be read, and InputError as serving does.
        """
        return [(file.name, {self._input: self._tensor(file)}) for file in files]

    def default_samples(self) -> list[tuple[str, Tensors]]:
        """No samples: every picture costs the same, so the self-test's input is enough."""
        return []

    def _tensor(self, file: Path) -> matte.Floats:
        try:
            body = file.read_bytes()
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
        try:
            pixels = matte.over_white(decode(body, PictureLimits()))
        except InputError as error:
            raise error.about(str(file)) from None
        wanted = self._parameters
        return matte.network_input(pixels, wanted.size, wanted.mean, wanted.std)
