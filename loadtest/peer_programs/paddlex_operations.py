"""Run PaddleX's own predictors on decoded pictures. Started by loadtest/against_paddlex.py.

    python paddlex_operations.py DIRECTORY

DIRECTORY/cases.json has `files`, pictures to read, and `cases`, each with `kind`, `config` (a
file), `picture` (.npy, BGR), `output` (.npy: the model's output, or null for none) and `arguments`
of the predictor's process(). The model itself does not run. For each case, input_N.npy is what it
would get, and results.json has the result. file_N.npy has the pixels (BGR) of a file that PaddleX
can read.
"""

import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import yaml
from paddlex.inference.common.reader import ReadImage
from paddlex.inference.models.image_classification.predictor import ClasRunnerPredictor
from paddlex.inference.models.semantic_segmentation.predictor import SegRunnerPredictor
from paddlex.inference.models.text_detection.predictor import TextDetRunnerPredictor
from paddlex.inference.models.text_recognition.predictor import TextRecRunnerPredictor
from paddlex.inference.pipelines.components import SortQuadBoxes

CLASSES = {
    "classify": ClasRunnerPredictor,
    "detect": TextDetRunnerPredictor,
    "read": TextRecRunnerPredictor,
    "segment": SegRunnerPredictor,
}
DEFAULTS = {
    "classify": {"topk": None},
    "detect": dict.fromkeys(
        ("limit_side_len", "limit_type", "thresh", "box_thresh", "unclip_ratio", "input_shape")
    )
    | {"max_side_limit": 4000},
    "read": {"input_shape": None, "return_word_box": False},
    "segment": {"target_size": None},
}


class NoModelError(Exception):
    """The case has no output of a model, so that only its input is of interest."""


class Model:
    """Records the model's input, and returns the output of the case."""

    def __init__(self, output):
        self.output = output
        self.input = None

    def __call__(self, x):
        self.input = x[0]
        if self.output is None:
            raise NoModelError
        return [self.output]


def predictor(kind, config, model):
    """Return the predictor as it is after __init__, which would look for the model's files."""
    document = yaml.safe_load(config.read_text("utf-8"))

    class Predictor(CLASSES[kind]):
        config = document
        model_name = document["Global"]["model_name"]
        batch_sampler = SimpleNamespace(batch_size=1)

        def __init__(self):
            vars(self).update(DEFAULTS[kind], runner=model)
            built = self._build()
            names = {"classify": ("preprocessors", "postprocessors")}
            names["segment"] = ("preprocessors", "postprocessers")
            for name, part in zip(names.get(kind, ("pre_tfs", "post_op")), built, strict=True):
                setattr(self, name, part)
            self.vis_font = None

    return Predictor()


class Batch(SimpleNamespace):
    def __len__(self):
        return len(self.instances)


def result_of(kind, answer):
    if kind == "classify":
        return [answer["label_names"][0], [float(score) for score in answer["scores"][0]]]
    if kind == "detect":
        boxes = answer["dt_polys"][0]
        ordered = SortQuadBoxes()(boxes) if len(boxes) else []
        scores = [float(score) for score in answer["dt_scores"][0]]
        return [np.array(boxes).tolist(), scores, np.array(ordered).tolist()]
    if kind == "read":
        return [answer["rec_text"][0], float(answer["rec_score"][0])]
    labels = np.array(answer["pred"][0][0]).astype(np.int32)
    return hashlib.sha256(labels.tobytes()).hexdigest()[:16]


def main():
    directory = Path(sys.argv[1])
    document = json.loads((directory / "cases.json").read_text("utf-8"))
    for number, file in enumerate(document["files"]):
        if (pixels := ReadImage(format="BGR")._img_reader.read(file)) is not None:
            np.save(directory / f"file_{number}.npy", pixels)
    results = []
    for number, case in enumerate(document["cases"]):
        output = None if case["output"] is None else np.load(directory / case["output"])
        model = Model(output)
        batch = Batch(
            instances=[np.load(directory / case["picture"])],
            input_paths=[None],
            page_indexes=[None],
        )
        result = None
        try:
            answer = predictor(case["kind"], directory / case["config"], model).process(
                batch, **case["arguments"]
            )
            result = result_of(case["kind"], answer)
        except NoModelError:
            pass
        np.save(directory / f"input_{number}.npy", model.input)
        results.append(result)
    (directory / "results.json").write_text(json.dumps(results), "utf-8")


main()
