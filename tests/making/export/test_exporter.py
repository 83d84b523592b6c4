"""A published version is whole, tested, described, small where asked, and free at run time."""

import hashlib
import json
import os
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import claim_tables
import numpy as np
import pytest

from paddlepool.contracts.errors import ExportError
from paddlepool.making.export.exporter import (
    BUCKETS,
    Store,
    export_version,
    import_u2net,
    read_recipe,
    run_program,
    segment_config,
    sentiment_config,
)
from paddlepool.making.export.publish import LAST_VERSION, Origin, next_version, staged_version
from paddlepool.making.export.release import RELEASES
from paddlepool.making.export.weights import write_tokenizer
from paddlepool.models.repository.config import load_config
from paddlepool.models.repository.layout import VERSION, version_numbers
from paddlepool.tasks.sentiment import pipeline
from tests.models.networks.conftest import FIXTURES
from tests.ran import ROOT

pytestmark = pytest.mark.paddle
TINY = FIXTURES / "tiny_bert"
ORIGIN = Origin("random", source="a test", licence="CC0-1.0", preview=True)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A weights file for the linear digit classifier."""
    path = tmp_path_factory.mktemp("digits") / "mnist.npz"
    random = np.random.default_rng(1)
    weights = random.normal(size=(784, 10)).astype(np.float32)
    arrays = {"linear.weight": weights, "linear.bias": np.zeros(10, np.float32)}
    np.savez(path, allow_pickle=False, **arrays)
    return path


@pytest.fixture(scope="module", params=["float32", "float16"])
def text_version(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny BERT published as version 1 of `emotion`, in either storage."""
    return export_version(
        read_recipe("bert", TINY),
        repository=tmp_path_factory.mktemp("repository"),
        name="emotion",
        origin=ORIGIN,
        store=request.param,
    )


def test_manifest_describes_every_file(text_version: Path) -> None:
    manifest = json.loads((text_version / "manifest.json").read_text("utf-8"))
    present = {path.name for path in text_version.iterdir()} - {"manifest.json"}
    assert manifest["files"].keys() == present
    for name, entry in manifest["files"].items():
        content = (text_version / name).read_bytes()
        assert entry == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert [spec["name"] for spec in manifest["inputs"]] == ["input_ids", "attention_mask"]
    assert manifest["outputs"] == [{"name": "logits", "dtype": "float32", "shape": [-1, 6]}]
    assert manifest["network"]["name"] == "bert"
    assert manifest["weights"]["origin"] == "random"
    assert manifest["weights"]["preview"] is True
    digest = hashlib.sha256((TINY / "model.safetensors").read_bytes()).hexdigest()
    assert manifest["weights"]["sha256"] == digest


def test_golden_output(text_version: Path) -> None:
    with np.load(text_version / "selftest.npz", allow_pickle=False) as golden:
        feeds = [golden["input.input_ids"], golden["input.attention_mask"]]
        expected, tolerance = golden["output.logits"], float(golden["tolerance"])
    for onednn in (True, False):
        (actual,) = run_program(text_version, feeds, onednn=onednn)
        assert np.abs(expected - actual).max() <= tolerance
    assert np.ptp(expected) > 100 * tolerance


def test_text_model_carries_its_tokenizer_and_labels(text_version: Path) -> None:
    """A directory with only vocab.txt gets a tokenizer.json, and config.toml names the labels."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(text_version / "tokenizer.json"))
    encoded = tokenizer.encode("我好难过。")
    assert encoded.tokens == ["[CLS]", "我", "好", "难", "过", "。", "[SEP]"]
    assert tokenizer.padding is None
    assert tokenizer.truncation is None
    config = load_config(text_version.parent / "config.toml")
    assert config.pipeline == "sentiment"
    assert config.parameters["labels"][:2] == ["angry", "happy"]
    assert config.parameters["labels_zh"][4] == "悲伤"
    assert config.parameters["buckets"] == [16, 24, 32, 48, 64]


def test_a_line_of_a_vocabulary_ends_at_a_newline_alone(tmp_path: Path) -> None:
    """In Chinese BERT's, the word at 343 is U+2028; every later id would be wrong by one."""
    from tokenizers import Tokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2028", "\x85", "好"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    write_tokenizer(tmp_path, tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [tokenizer.token_to_id(word) for word in words] == list(range(len(words)))
    assert tokenizer.get_vocab_size() == len(words)


def test_a_vocabulary_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes("[UNK]\n难\n".encode("gb18030"))
    with pytest.raises(ExportError, match=r"vocab\.txt cannot be read as UTF-8"):
        write_tokenizer(tmp_path, tmp_path)


def test_equal_input_gives_equal_bytes(digits: Path, tmp_path: Path) -> None:
    """Two exports of the same weights are the same bytes, so the manifest is a fingerprint."""
    recipe = read_recipe("mnist", digits)
    versions = [
        export_version(recipe, repository=tmp_path, name="mnist", origin=ORIGIN) for _ in range(2)
    ]
    assert [path.name for path in versions] == ["1", "2"]
    for path in versions[0].iterdir():
        assert path.read_bytes() == (versions[1] / path.name).read_bytes(), path.name


def test_existing_config_is_kept(digits: Path, tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "config.toml").write_text("# mine\n")
    export_version(read_recipe("mnist", digits), repository=tmp_path, name="mnist", origin=ORIGIN)
    assert (tmp_path / "mnist" / "config.toml").read_text() == "# mine\n"


@pytest.mark.parametrize(
    ("text", "model"),
    [
        (segment_config(320), "u2netp"),
        (sentiment_config(labels=("a", "b"), pad_id=0, positions=512), "emotion"),
    ],
    ids=["u2netp", "bert"],
)
def test_a_new_model_has_the_groups_of_the_shipped_one(text: str, model: str) -> None:
    """What was measured for ours is there for everybody's."""
    shipped = (ROOT / "model_repo" / model / "config.toml").read_text("utf-8")
    assert tomllib.loads(text)["instance_group"] == tomllib.loads(shipped)["instance_group"]


def test_the_length_buckets_are_the_same_wherever_they_are_written() -> None:
    """What is exported and what is measured is what a model without buckets of its own gets."""
    assert pipeline.BUCKETS == BUCKETS
    served = tuple(length for length in BUCKETS if length <= claim_tables.PADDED)
    assert served == claim_tables.BUCKETS


def test_failing_export_leaves_nothing(digits: Path, tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        assert (directory / "inference.json").exists()
        raise ExportError("half-way")

    recipe = replace(read_recipe("mnist", digits), write_extras=fail)
    with pytest.raises(ExportError, match="half-way"):
        export_version(recipe, repository=tmp_path, name="mnist", origin=ORIGIN)
    assert list((tmp_path / "mnist").iterdir()) == []


@pytest.mark.parametrize(
    ("array", "value", "store", "message"),
    [
        ("linear.weight", 3e38, "float32", "output logits of the exported program is not finite"),
        ("linear.bias", 7e4, "float16", "bias does not fit float16"),
    ],
    ids=["no numbers", "too large for float16"],
)
def test_weights_that_cannot_be_served(
    digits: Path, tmp_path: Path, array: str, value: float, store: Store, message: str
) -> None:
    recipe = read_recipe("mnist", digits)
    recipe.state[array][:] = value
    with pytest.raises(ExportError, match=message):
        export_version(recipe, repository=tmp_path, name="m", origin=ORIGIN, store=store)


def test_weights_of_unknown_origin_are_not_imported(tmp_path: Path) -> None:
    file = tmp_path / "u2netp.onnx"
    file.write_bytes(b"another network")
    with pytest.raises(ExportError, match=r"has sha256 .*; use --origin to import other weights"):
        import_u2net("u2netp", file, repository=tmp_path, release=RELEASES["u2netp"])


@pytest.mark.parametrize("name", ["", "two words", "../up", ".hidden", "a" * 65])
def test_model_names(digits: Path, tmp_path: Path, name: str) -> None:
    """A name that the server would not list, or that leaves the repository, is refused."""
    with pytest.raises(ExportError, match="must match"):
        export_version(read_recipe("mnist", digits), repository=tmp_path, name=name, origin=ORIGIN)


def test_versions_count_up_from_the_highest(tmp_path: Path) -> None:
    """Gaps are not filled, and directories that are no versions do not count."""
    for name in ("1", "7", "007", ".staging-ab", "v9", "12x", "1234567890"):
        (tmp_path / name).mkdir()
    assert version_numbers(tmp_path) == [7, 1]
    assert next_version(tmp_path) == 8
    assert next_version(tmp_path / "new") == 1


@pytest.mark.parametrize("version", [0, -3, LAST_VERSION + 1, 10**12])
def test_a_version_that_no_server_would_see_is_refused(version: int, tmp_path: Path) -> None:
    with pytest.raises(ExportError) as refused, staged_version(tmp_path / "m", version):
        pass
    assert refused.value.message == (
        f"a version is a whole number from 1 to 999999999, received {version}"
    )
    assert list(tmp_path.iterdir()) == []
    assert VERSION.fullmatch(str(LAST_VERSION))
    assert not VERSION.fullmatch(str(LAST_VERSION + 1))


def test_what_a_killed_export_left_is_removed_a_day_later(tmp_path: Path) -> None:
    for age, name in ((0.0, "new"), (90_000.0, "old")):
        left = tmp_path / f".staging-{name}"
        left.mkdir()
        (left / "inference.pdiparams").write_bytes(b"half")
        os.utime(left, (time.time() - age, time.time() - age))
    with staged_version(tmp_path, 1):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {".staging-new", "1"}


def test_version_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    with pytest.raises(ExportError, match="already has a version 1"), staged_version(tmp_path, 1):
        pass
    staging = staged_version(tmp_path, 3)
    (staging.__enter__() / "file").touch()
    (tmp_path / "3" / "other").mkdir(parents=True)
    with pytest.raises(ExportError, match="was published meanwhile"):
        staging.__exit__(None, None, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "3"]
    assert [path.name for path in (tmp_path / "3").iterdir()] == ["other"]
