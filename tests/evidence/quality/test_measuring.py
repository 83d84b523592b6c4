"""Measuring models: batches, the tables of each task, absent data, and the whole command."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from paddlepool.cli import main
from paddlepool.contracts.errors import ConfigError
from paddlepool.contracts.ports import Predictor, ServedModelInfo
from paddlepool.contracts.tensors import Tensors, TensorSpec
from paddlepool.evidence.quality.ports import EvaluationPredictor, Findings, Source, Table
from paddlepool.evidence.quality.run import compare_outputs, differences
from paddlepool.tasks.sentiment.evaluation import SentimentQuality
from tests.ran import ROOT

T = TypeVar("T")
SHARED = ROOT.parent / "shared" / "data"


class FakePredictor(EvaluationPredictor):
    """Computes outputs with a function of one job."""

    def __init__(self, network: Callable[[Tensors], Tensors]) -> None:
        self._network = network

    def run(self, jobs: Sequence[Tensors], *, what: str) -> list[Tensors]:
        return [self._network(job) for job in jobs]

    def with_progress(self, items: Sequence[T], *, what: str) -> Iterator[T]:
        return iter(items)


def test_the_predictor_joins_equal_shapes_and_keeps_the_order() -> None:
    """Five jobs of two shapes in batches of at most two: each gets its own output back."""
    batches = []

    class Doubling:
        def run(self, inputs: Tensors, *, timeout: float) -> Tensors:
            batches.append(inputs["x"].shape)
            return {"y": 2 * inputs["x"]}

    jobs = [{"x": np.full((1, width), number)} for number, width in enumerate((3, 4, 3, 3, 4))]
    predictor = EvaluationPredictor(cast(Predictor, Doubling()), max_batch_size=2, label="toy")
    outputs = predictor.run(jobs, what="jobs")
    assert [int(output["y"][0, 0]) for output in outputs] == [0, 2, 4, 6, 8]
    assert batches == [(2, 3), (1, 3), (2, 4)]


@pytest.fixture
def reader(tmp_path: Path) -> ServedModelInfo:
    """An emotion model of two labels whose tokenizer knows two words, and splits to judge it on."""
    tokenizer = Tokenizer(
        WordLevel({"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "glad": 4, "blue": 5}, "[UNK]")
    )
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    posts = {
        "train": [("Glad, glad!", "happy")],
        "eval": [("glad glad", "happy"), ("blue", "sad"), ("glad", "sad")],
    }
    (tmp_path / "smp2020_ewect").mkdir()
    for split in ("usual", "virus"):
        for part, rows in posts.items():
            lines = [json.dumps({"content": text, "label": label}) for text, label in rows]
            path = tmp_path / "smp2020_ewect" / f"{split}_{part}.jsonl"
            path.write_text("\n".join(lines) + "\n", "utf-8")
    (tmp_path / "smoke.jsonl").write_text('{"text": "blue", "label": "happy"}\n', "utf-8")
    (tmp_path / "everyday.jsonl").write_text('{"text": "blue", "label": "sad"}\n', "utf-8")
    return ServedModelInfo(
        name="toy",
        version=1,
        directory=tmp_path,
        inputs=tuple(TensorSpec(n, "int64", (-1, -1)) for n in ("input_ids", "attention_mask")),
        outputs=(TensorSpec("logits", "float32", (-1, 2)),),
        parameters={"labels": ["happy", "sad"], "buckets": [8, 128], "max_tokens": 128},
    )


def _by_first_word(job: Tensors) -> Tensors:
    blue = job["input_ids"][0, 1] == 5
    return {"logits": np.array([[0.0, 4.0] if blue else [4.0, 0.0]], np.float32)}


def test_texts_are_judged_with_and_without_copies_of_training(reader: ServedModelInfo) -> None:
    """Two of three right; without the one that training has, one of two; a smoke text is wrong."""
    files = tuple(reader.directory / f"{name}.jsonl" for name in ("smoke", "everyday"))
    source = Source(data=reader.directory, smoke=files)
    found = SentimentQuality(reader, source).measure(FakePredictor(_by_first_word))
    tables = {table.key: dict(table.rows) for table in found.tables}
    assert tables["eval"]["usual_eval"][:2] == (3, pytest.approx(2 / 3))
    assert tables["eval"]["usual_eval without posts of usual_train"][:2] == (2, 0.5)
    assert tables["f1"]["virus_eval"] == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert tables["smoke"] == {"smoke sentences": (1, 0), "everyday sentences": (1, 1)}
    assert sum(tables["benchmark_sentence"]["scores"]) == pytest.approx(1)
    assert found.notes == ("happy taken for sad (0.98): blue",)


@pytest.mark.parametrize("content", [b"{", b'{"content": 3, "label": "happy"}', b"\n"])
def test_a_damaged_split_is_named(reader: ServedModelInfo, content: bytes) -> None:
    (reader.directory / "smp2020_ewect" / "virus_eval.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match=r"virus_eval\.jsonl"):
        SentimentQuality(reader, Source(data=reader.directory))


@pytest.mark.paddle
@pytest.mark.parametrize(
    "models", [("mnist",), pytest.param(("emotion", "mnist", "u2netp"), marks=pytest.mark.nightly)]
)
def test_the_served_models_are_measured(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    models: tuple[str, ...],
) -> None:
    """A quick look, in text and JSON: it says that it is one, and mnist is good."""
    if not SHARED.is_dir():
        pytest.skip("NOT TESTED: the data of ../shared are not beside the project")
    monkeypatch.chdir(ROOT)
    file = tmp_path / "quality.json"
    only = [] if len(models) > 1 else list(models)
    options = ["--quality", "--limit", "4", "--json", str(file)]
    assert main(["models", "verify", *only, *options]) == 0
    printed = capsys.readouterr().out
    assert printed.count("QUICK LOOK at the first 4 of each set") == len(models)
    figures = {name: found["figures"] for name, found in json.loads(file.read_text()).items()}
    assert set(figures) == set(models)
    assert figures["mnist"]["held_out"]["held-out digits"]["accuracy"] >= 0.75
    if only:
        return
    assert figures["u2netp"]["validation"]["served mask"]["pairs"] == 4
    assert figures["emotion"]["eval"]["usual_eval"]["texts"] == 4
    assert figures["emotion"]["benchmark_sentence"]["scores"]["sad"] > 0.5


def figures(iou: float) -> Findings:
    rows = (("served mask", (155, iou)),)
    return Findings(tables=(Table(key="v", title="Pairs", columns=("pairs", "IoU"), rows=rows),))


def test_figures_are_subtracted_and_counts_are_not() -> None:
    [table] = differences(figures(0.9), figures(0.875), base="onednn")
    assert table.title == "Pairs: difference from onednn"
    [(name, (pairs, iou))] = table.rows
    assert (name, pairs, iou) == ("served mask", 155, pytest.approx(-0.025))


def test_outputs_are_compared_run_by_run() -> None:
    expected = [{"y": np.array([[0.0, 1.0]])}, {"y": np.array([[1.0, 0.0]])}]
    found = [{"y": np.array([[0.0, 1.0]])}, {"y": np.array([[0.8, 0.2]])}]
    table = compare_outputs(
        found, expected, agreement=lambda ours, theirs: float(ours is not theirs), base="onednn"
    )
    [(_, values)] = table.rows
    assert table.columns == ("runs", "mean difference", "worst mean", "agreement")
    assert values == (2, pytest.approx(0.1), pytest.approx(0.2), 1.0)
