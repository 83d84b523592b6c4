"""Pre-training of the emotion encoder: packing, corruption, what is asked, and resuming."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason="SKIPPED EMOTION TRAINING TESTS: torch is absent; install the extra [train]"
)
pytest.importorskip("transformers", reason="install the extra [train]")
pytest.importorskip("sklearn", reason="install the extra [train]")

from tokenizers import Tokenizer  # noqa: E402 - after the skips, like all that follows
from transformers import BertForSequenceClassification  # noqa: E402

from tests.training.conftest import post, run  # noqa: E402
from training.emotion import average, finetune, linear, prepare, pretrain, vocabulary  # noqa: E402
from training.emotion.corpora import LABELS, TASKS  # noqa: E402
from training.emotion.evaluate import encoded, logits  # noqa: E402
from training.emotion.prepare import key  # noqa: E402

pytestmark = pytest.mark.nightly


@pytest.fixture
def prepared(corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder after the steps before pre-training."""
    out = tmp_path / "run"
    run(prepare, monkeypatch, "--data", corpora, "--out", out)
    run(vocabulary, monkeypatch, "--out", out, "--size", "1200")
    run(linear, monkeypatch, "--out", out, "--folds", "2")
    return out


def test_every_step_to_a_saved_classifier(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wider teacher, a resumed run and its cooldown on the way to a folder for transformers."""
    out = prepared
    evaluation = {key(post(n, n % 6)) for n in range(12)}
    for name in ("train.jsonl", "dev.jsonl", "auxiliary.jsonl"):
        assert not evaluation & {key(p.text) for p in prepare.load(out / name)}
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    assert tokenizer.encode("ＡＢ http://t.cn/x @某人 [泪]").tokens[0] == "[CLS]"

    tuning = ("--out", out, "--threads", "1", "--tokens", "256", "--rate", "2e-3")
    quick = (*tuning, "--device", "cpu", "--epochs")
    shape = ("--layers", "1", "--rows", "4", "--threads", "1", "--device", "cpu")
    wide = ("--out", out, *shape, "--width", "128", "--name", "teacher", "--minutes", "0.01")
    run(pretrain, monkeypatch, *wide, "--workers", "2")
    run(pretrain, monkeypatch, *wide, "--cooldown")
    folds = ("--begin", "teacher-cool", "--name", "folds", "--folds", "2", "--push", "0.1")
    run(finetune, monkeypatch, *quick, "1", *folds, "--teacher", "linear", "--at-once", "2")
    opinions = np.load(out / "folds.npz")
    assert opinions["train"].sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert len(opinions["auxiliary"]) == len(np.load(out / "linear.npz")["auxiliary"])

    training = ("--out", out, *shape, "--width", "64", "--teacher", "folds")
    run(pretrain, monkeypatch, *training, "--minutes", "0.02")
    steps = torch.load(out / "pretrain.pt", weights_only=True)["step"]
    assert steps > 0
    run(pretrain, monkeypatch, *training, "--minutes", "0.01")
    assert f"from step {steps}," in capsys.readouterr().out
    before = (out / "pretrain.pt").read_bytes()
    run(pretrain, monkeypatch, *training, "--minutes", "0.01", "--cooldown")
    assert (out / "pretrain.pt").read_bytes() == before

    taught = ("--teacher", "linear", "folds", "--name")
    run(finetune, monkeypatch, *quick, "10", *taught, "one")
    run(finetune, monkeypatch, *quick, "10", *taught, "other", "--agreement", "0")
    run(average, monkeypatch, "--out", out, "--name", "hf", "one", "other")

    model = BertForSequenceClassification.from_pretrained(out / "hf")
    assert model.config.id2label == dict(enumerate(LABELS))
    texts = [post(n, n % 6) for n in range(12)]
    guesses = logits(model, encoded(tokenizer, texts)).argmax(axis=1)
    assert (guesses == np.arange(12) % 6).mean() > 0.8
    assert set(TASKS) >= {p.task for p in prepare.load(out / "auxiliary.jsonl")}
