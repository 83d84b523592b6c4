"""Sample pictures, and a model's quality on known masks, for the offline commands."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, TypeVar

import cv2
import numpy as np

from paddlepool.contracts.errors import ConfigError, InputError
from paddlepool.contracts.ports import ServedModelInfo
from paddlepool.contracts.tensors import Tensors
from paddlepool.evidence.quality.ports import (
    EvaluationPredictor,
    Findings,
    Source,
    Table,
    folder,
    read_bytes,
)
from paddlepool.tasks.codecs.decode import decode
from paddlepool.tasks.codecs.limits import PictureLimits
from paddlepool.tasks.codecs.picture import Floats, Pixels, opaque
from paddlepool.tasks.segment import matte
from paddlepool.tasks.segment.pipeline import mask_agreement, read_parameters
from paddlepool.tasks.segment.semantic import read_semantic
from paddlepool.tasks.transforms.stages import prepare

BETA_SQUARED = 0.3
"""Weight of recall in F, the field's convention since Achanta et al. 2009."""


@dataclass(frozen=True, slots=True)
class MaskScores:
    """Quality of masks: `mae` and `iou` are means over all pictures, `max_f` is the largest F.

    F is computed for each of 256 thresholds, from the mean precision and the mean recall at it.
    """

    mae: float
    max_f: float
    iou: float
    pictures: int

    def __str__(self) -> str:
        return (
            f"MAE {self.mae:.4f}  max-F {self.max_f:.4f}  IoU@0.5 {self.iou:.4f}"
            f"  ({self.pictures} pictures)"
        )


def measure(predictions: Iterable[Floats], truths: Iterable[Pixels]) -> MaskScores:
    """Compare predicted masks (H, W) from 0 to 1 with the true masks, uint8, one for each.

    A pixel of a true mask is foreground above 127. For IoU, a pixel of a predicted mask is
    foreground above 0.5. The IoU of two empty masks is 1.
    """
    errors, overlaps, precisions, recalls = [], [], [], []
    for prediction, truth in zip(predictions, truths, strict=True):
        errors.append(float(np.abs(prediction - truth.astype(np.float32) / 255).mean()))
        solid = truth > 127
        guess = prediction > 0.5
        union = int((guess | solid).sum())
        overlaps.append(int((guess & solid).sum()) / union if union else 1.0)
        level = np.clip(np.rint(prediction * 255), 0, 255).astype(np.int64)
        hits = np.bincount(level[solid], minlength=256)[::-1].cumsum()
        marked = np.bincount(level.ravel(), minlength=256)[::-1].cumsum()
        precisions.append(hits / np.maximum(marked, 1))
        recalls.append(hits / max(int(solid.sum()), 1))
    precision, recall = np.mean(precisions, axis=0), np.mean(recalls, axis=0)
    f = (1 + BETA_SQUARED) * precision * recall
    f = f / np.maximum(BETA_SQUARED * precision + recall, 1e-12)
    return MaskScores(
        float(np.mean(errors)), float(f.max()), float(np.mean(overlaps)), len(overlaps)
    )


def centred_ellipse(picture: Pixels) -> Floats:
    """Return a mask (H, W): 1 in a centred ellipse whose axes are 0.6 of the picture's sides."""
    height, width = picture.shape[:2]
    y, x = np.mgrid[:height, :width].astype(np.float32)
    across = (x - (width - 1) / 2) / (0.3 * width)
    down = (y - (height - 1) / 2) / (0.3 * height)
    return (across**2 + down**2 <= 1).astype(np.float32)


def grabcut(picture: Pixels) -> Floats:
    """Return a mask (H, W), 0 or 1, by five rounds of OpenCV's GrabCut.

    GrabCut starts from a centred box with a margin of 15 % on each side.
    """
    height, width = picture.shape[:2]
    left, top = round(0.15 * width), round(0.15 * height)
    box = (left, top, width - 2 * left, height - 2 * top)
    colours = np.ascontiguousarray(picture[..., ::-1])
    labels = np.zeros((height, width), np.uint8)
    cv2.setRNGSeed(0)
    models = np.zeros((1, 65)), np.zeros((1, 65))
    cv2.grabCut(colours, labels, box, *models, 5, cv2.GC_INIT_WITH_RECT)
    return np.isin(labels, (cv2.GC_FGD, cv2.GC_PR_FGD)).astype(np.float32)


BASELINES: dict[str, Callable[[Pixels], Floats]] = {
    "all-zero mask": lambda picture: np.zeros(picture.shape[:2], np.float32),
    "centred ellipse": centred_ellipse,
    "GrabCut from a centred box": grabcut,
}

SIDE = 320
"""Side in pixels to which pictures and masks of the validation pairs are resized."""
VALIDATION_EVERY = 10
"""Every tenth pair by sorted name, from the first, is for validation. Training never sees it."""
PARTS = {"ecssd": "ECSSD", "pascals": "PASCAL-S"}
"""Origin of a pair, by the prefix of its name."""

Array = TypeVar("Array", Pixels, Floats)


class Pair(NamedTuple):
    """A picture (H, W, 3) and its expected mask (H, W), both uint8."""

    name: str
    picture: Pixels
    mask: Pixels


class SegmentQuality:
    """Measures a matting model on pictures with known masks.

    These are every tenth pair of `sod_train` and, if present, the pictures of `u2net_golden`.
    Constructing one raises ConfigError if files are missing, and as read_parameters() does. It
    raises InputError if a file is no usable picture.
    """

    def __init__(self, info: ServedModelInfo, source: Source) -> None:
        self._info = info
        self._output = read_parameters(info).output
        root = source.data / "sod_train"
        files = sorted(folder(root / "images").glob("*.jpg"), key=attrgetter("stem"))
        if not files:
            raise ConfigError(f"{root / 'images'} contains no .jpg")
        self._pairs = [
            Pair(pair.name, _sized(pair.picture), _sized(pair.mask))
            for pair in _pairs(files[::VALIDATION_EVERY][: source.limit], root / "masks")
        ]
        golden = source.data / "u2net_golden"
        self._golden: list[Pair] = []
        if golden.is_dir():
            files = sorted(file for file in folder(golden / "images").iterdir() if file.is_file())
            self._golden = list(_pairs(files[: source.limit], golden / "masks"))

    def measure(self, predictor: EvaluationPredictor) -> Findings:
        validation = self._validation(predictor)
        if self._golden:
            return Findings(tables=(validation, self._official(predictor)))
        note = "NOT MEASURED: the official masks (u2net_golden) are not among the data"
        return Findings(tables=(validation,), notes=(note,))

    def _validation(self, predictor: EvaluationPredictor) -> Table:
        raw = [_sized(mask) for mask in self._masks(self._pairs, predictor, "validation pairs")]
        served = [matte.normalise(mask) for mask in raw]
        maps = {"served mask": (self._pairs, served)}
        for prefix, name in PARTS.items():
            part = [n for n, pair in enumerate(self._pairs) if pair.name.startswith(prefix)]
            if part:
                pairs = [self._pairs[n] for n in part]
                maps[f"served mask, {name} pairs"] = pairs, [served[n] for n in part]
        maps["the network's own map, not stretched"] = self._pairs, raw
        for name, baseline in BASELINES.items():
            pictures = predictor.with_progress([pair.picture for pair in self._pairs], what=name)
            maps[name] = self._pairs, [baseline(picture) for picture in pictures]
        rows = []
        for name, (pairs, masks) in maps.items():
            quality = measure(masks, [pair.mask for pair in pairs])
            rows.append((name, (quality.pictures, quality.mae, quality.max_f, quality.iou)))
        return Table(
            key="validation",
            title=f"Every tenth pair of sod_train, masks at {SIDE} × {SIDE}",
            columns=("pairs", "MAE", "max-F", "IoU@0.5"),
            rows=tuple(rows),
        )

    def _official(self, predictor: EvaluationPredictor) -> Table:
        errors = []
        masks = self._masks(self._golden, predictor, "official masks")
        for pair, mask in zip(self._golden, masks, strict=True):
            height, width = pair.mask.shape
            alpha = matte.plain_alpha(matte.normalise(mask), width, height)
            errors.append(float(np.abs(alpha.astype(np.float64) - pair.mask).mean() / 255))
        return Table(
            key="official",
            title="Distance from the masks of the official release, at the picture's size",
            columns=("pictures", "mean MAE", "worst MAE"),
            rows=(("served mask", (len(errors), float(np.mean(errors)), max(errors))),),
        )

    def _masks(
        self, pairs: Sequence[Pair], predictor: EvaluationPredictor, what: str
    ) -> list[Floats]:
        outputs = predictor.run([_tensors(self._info, pair.picture) for pair in pairs], what=what)
        return [np.asarray(output[self._output], np.float32)[0, 0] for output in outputs]


def segment_quality(info: ServedModelInfo, source: Source) -> SegmentQuality | None:
    """Return a model's measure of quality; None for a semantic segmentation model, which has none.

    Raises as SegmentQuality does.
    """
    return None if read_semantic(info) else SegmentQuality(info, source)


def _pairs(pictures: Sequence[Path], masks: Path) -> Iterator[Pair]:
    for file in pictures:
        yield Pair(file.name, _picture(file), _picture(masks / f"{file.stem}.png")[..., 0])


def _picture(path: Path) -> Pixels:
    """Read a picture (H, W, 3), on white where it is transparent.

    Raises ConfigError if the file cannot be read, and InputError if it is no usable picture.
    """
    body = read_bytes(path)
    try:
        return opaque(decode(body, PictureLimits()))
    except InputError as error:
        raise error.about(str(path)) from None


def _tensors(info: ServedModelInfo, picture: Pixels) -> Tensors:
    """Return the model's input for a picture, made as the server does."""
    if semantic := read_semantic(info):
        return {info.inputs[0].name: prepare(picture, semantic.operations)}
    parameters = read_parameters(info).model_dump(exclude={"output"})
    tensor = matte.network_input(picture, **parameters)
    return {info.inputs[0].name: tensor}


def _sized(array: Array) -> Array:
    return cv2.resize(array, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)


class MaskComparison:
    """How `paddlepool compare` measures a matting model: on pictures, by the IoU of two masks.

    A semantic segmentation model is measured by the share of pixels with equal labels.
    Constructing one raises ConfigError as mask_agreement() does.
    """

    agreement_name = "mask IoU"
    least_agreement = 0.9  # masks of a picture without an object may differ much

    def __init__(self, info: ServedModelInfo) -> None:
        self._info = info
        if read_semantic(info):
            self.agreement_name, self.least_agreement = "equal labels", 0.95
        self.agreement = mask_agreement(info)

    def samples(self, files: Sequence[Path]) -> list[tuple[str, Tensors]]:
        """Return the file name and the model's input for each picture.

        Raises ConfigError if a file cannot be read, and InputError if it is no usable picture.
        """
        return [(file.name, _tensors(self._info, _picture(file))) for file in files]

    def default_samples(self) -> list[tuple[str, Tensors]]:
        """Return no samples: the self-test's input is enough, as most models accept one shape."""
        return []
