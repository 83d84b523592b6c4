"""The U²-Netp training code: upstream names, learning, exact resumption, data and measures."""

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason="SKIPPED U2-Netp TRAINING TESTS: torch is absent; install the extra [train]"
)
import cv2  # noqa: E402 - after the skip, like all that follows

from training.u2netp import evaluate as evaluation  # noqa: E402
from training.u2netp import train as command  # noqa: E402
from training.u2netp.data import (  # noqa: E402
    Corpus,
    read,
)
from training.u2netp.trainer import Phase, Settings, Trainer  # noqa: E402

pytestmark = pytest.mark.nightly

PAIRS = 20
SETTINGS = Settings((Phase(64, 16, 4, 2),), rate=1e-3, warm_up=0.0, bf16=False)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Small tensors gain nothing from more, and lose much on a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty pictures of one bright disc on a dark ground, with its mask."""
    root = tmp_path_factory.mktemp("pairs")
    (root / "images").mkdir()
    (root / "masks").mkdir()
    random = np.random.default_rng(0)
    for number in range(PAIRS):
        mask = np.zeros((320, 320), np.uint8)
        centre = tuple(int(c) for c in random.integers(90, 230, 2))
        cv2.circle(mask, centre, int(random.integers(40, 80)), 255, -1)
        picture = random.integers(0, 80, (320, 320, 3), dtype=np.uint8)
        picture[mask > 0] += 150
        cv2.imwrite(str(root / "images" / f"disc_{number:02}.jpg"), picture)
        cv2.imwrite(str(root / "masks" / f"disc_{number:02}.png"), mask)
    return root


@pytest.fixture(scope="module")
def corpus(folder: Path) -> Corpus:
    """The twenty pairs in memory, without soft targets."""
    return read(folder)


def _weights(trainer: Trainer) -> dict[str, torch.Tensor]:  # type: ignore[name-defined]
    return {
        **trainer.network.state_dict(),
        **{f"ema {k}": v for k, v in trainer.average.state_dict().items()},
    }


def test_resumed_run_equals_uninterrupted(corpus: Corpus, tmp_path: Path) -> None:
    whole = Trainer(corpus, SETTINGS)
    for batch in whole.batches(workers=0):
        whole.step(*batch)
    first = Trainer(corpus, SETTINGS)
    stream = first.batches(workers=0)
    for _ in range(2):
        first.step(*next(stream))
    torch.save(first.state(), tmp_path / "checkpoint.pt")
    second = Trainer(corpus, SETTINGS)
    second.restore(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    for batch in second.batches(workers=0):
        second.step(*batch)
    expected, actual = _weights(whole), _weights(second)
    assert whole.seen == second.seen == 16
    assert [name for name in expected if not torch.equal(expected[name], actual[name])] == []


def test_run_leaves_checkpoint_weights_metrics_and_goes_on(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A second call finds nothing left to do; the evaluation prints the same figures."""
    out = tmp_path / "run"
    line = f"train --data {folder} --out {out} --phases 64x4x4 --calibrate 2 --fp32 --device cpu"
    monkeypatch.setattr("sys.argv", line.split())
    command.main()
    metrics = json.loads((out / "metrics.json").read_text())
    assert {path.name for path in out.iterdir()} == {
        "checkpoint.pt",
        "history.jsonl",
        "metrics.json",
        "u2netp.safetensors",
    }
    assert metrics["seen"] == 4
    command.main()
    assert "resumed after 4 pictures" in capsys.readouterr().out
    line = f"evaluate --data {folder} --weights {out}/u2netp.safetensors --json {out}/quality.json"
    monkeypatch.setattr("sys.argv", [*line.split(), "--threads", "1"])
    evaluation.main()
    again = json.loads((out / "quality.json").read_text())["quality"]
    assert again["u2netp.safetensors raw all"]["mae"] == pytest.approx(metrics["raw"]["mae"], 1e-4)
