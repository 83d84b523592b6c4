"""The U²-Netp training code: upstream names, learning, exact resumption, data and measures."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason="SKIPPED U2-Netp TRAINING TESTS: torch is absent; install the extra [train]"
)
import cv2  # noqa: E402 - after the skip, like all that follows

from app.quality.baselines import BASELINES  # noqa: E402
from training.u2netp import evaluate as evaluation  # noqa: E402
from training.u2netp import train as command  # noqa: E402
from training.u2netp.augment import Recipe, Samples  # noqa: E402
from training.u2netp.data import (  # noqa: E402
    Corpus,
    DataError,
    normalise,
    read,
    write_pack,
    write_soft,
)
from training.u2netp.evaluate import load_network, measure, stretch  # noqa: E402  # type: ignore[attr-defined]
from training.u2netp.loader import to_input  # noqa: E402
from training.u2netp.loss import deep_loss  # noqa: E402
from training.u2netp.network import U2Netp  # noqa: E402
from training.u2netp.train import export  # noqa: E402
from training.u2netp.trainer import Phase, Settings, Trainer, parse_phases  # noqa: E402

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


def test_network_has_upstream_names_and_size() -> None:
    """The module tree is upstream's: 1,131,181 parameters, known names, none beside them."""
    parameters = dict(U2Netp().named_parameters())
    assert sum(p.numel() for p in parameters.values()) == 1_131_181
    assert len(parameters) == 2 * 7 + 4 * 112
    assert parameters["stage1.rebnconvin.conv_s1.weight"].shape == (64, 3, 3, 3)
    assert parameters["stage1.rebnconv7.bn_s1.bias"].shape == (16,)
    assert parameters["stage5d.rebnconv1d.conv_s1.weight"].shape == (64, 32, 3, 3)
    assert parameters["stage1d.rebnconvin.conv_s1.weight"].shape == (64, 128, 3, 3)
    assert parameters["side6.weight"].shape == (1, 64, 3, 3)
    assert parameters["outconv.weight"].shape == (1, 6, 1, 1)


def test_network_gives_seven_maps_of_the_input_size() -> None:
    """Even where pooling rounds up, all seven maps have the picture's height and width."""
    with torch.inference_mode():
        maps = U2Netp().eval()(torch.zeros(1, 3, 88, 72))
    assert [tuple(m.shape) for m in maps] == [(1, 1, 88, 72)] * 7


def test_one_step_lowers_the_loss(corpus: Corpus) -> None:
    """After one optimiser step the same batch has a smaller loss."""
    trainer = Trainer(corpus, SETTINGS)
    pictures, targets = next(trainer.batches(workers=0))
    before = trainer.step(pictures, targets)
    with torch.no_grad():
        outputs = trainer.network.train()(to_input(pictures))
        after = float(deep_loss(outputs, targets.float() / 255))
    assert after < before


def test_resumed_run_equals_uninterrupted(corpus: Corpus, tmp_path: Path) -> None:
    """Stopping after half the batches and going on from disk gives bit-identical weights."""
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


def test_checkpoint_of_another_seed_is_refused(corpus: Corpus) -> None:
    """Going on with another sample stream would be a different experiment."""
    state = Trainer(corpus, SETTINGS).state()
    other = Trainer(corpus, Settings(SETTINGS.phases, seed=21))
    with pytest.raises(DataError, match="seed 20, asked for 21"):
        other.restore(state)


def test_ranks_share_each_batch(corpus: Corpus) -> None:
    """Two ranks together see the pictures that one process sees, in its order."""
    whole = Trainer(corpus, SETTINGS).batches(workers=0)
    first = Trainer(corpus, SETTINGS, rank=0, ranks=2).batches(workers=0)
    second = Trainer(corpus, SETTINGS, rank=1, ranks=2).batches(workers=0)
    for (expected, _), (one, _), (other, _) in zip(whole, first, second, strict=True):
        assert torch.equal(expected, torch.cat((one, other)))


def test_ranks_take_the_same_steps_after_a_change_of_schedule(corpus: Corpus) -> None:
    """A run resumed off the grid of its batches: a rank with one batch more would wait for ever."""
    counts = set()
    for rank in range(2):
        trainer = Trainer(corpus, SETTINGS, rank=rank, ranks=2)
        trainer.seen = 2
        counts.add(len(list(trainer.batches(workers=0))))
    assert counts == {3}


# Python 3.12 warns of any fork beside threads; the forked loaders never touch torch's.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_loader_processes_change_nothing(corpus: Corpus) -> None:
    """Two processes working ahead give the batches that none gives, in the same order."""
    alone = list(Trainer(corpus, SETTINGS).batches(workers=0))
    ahead = list(Trainer(corpus, SETTINGS).batches(workers=2))
    assert len(alone) == len(ahead) == 4
    for expected, actual in zip(alone, ahead, strict=True):
        assert torch.equal(expected[0], actual[0])
        assert torch.equal(expected[1], actual[1])


def test_validation_pictures_are_never_sampled(corpus: Corpus) -> None:
    """Blackening every validation picture and mask changes no sample of two epochs."""
    dark = Corpus(corpus.names, corpus.pictures.copy(), corpus.masks.copy(), None, None)
    dark.pictures[corpus.validation] = 0
    dark.masks[corpus.validation] = 0
    recipe = Recipe(paste=1.0)
    plain = Samples(corpus, size=64, seed=1, recipe=recipe)
    blind = Samples(dark, size=64, seed=1, recipe=recipe)
    assert corpus.validation.tolist() == [0, 10]
    for number in range(2 * len(corpus.training)):
        assert np.array_equal(plain[number][0], blind[number][0])
        assert np.array_equal(plain[number][1], blind[number][1])


def test_targets_stay_in_range_and_soft_maps_are_mixed_in(corpus: Corpus) -> None:
    """With soft maps of constant 255 and half truth, every target is at least one half."""
    count = len(corpus.names)
    soft = Corpus(
        corpus.names,
        corpus.pictures,
        corpus.masks,
        np.full((count, 320, 320), 255, np.uint8),
        np.full((count, 6, 160, 160), 255, np.uint8),
    )
    samples = Samples(soft, size=64, seed=1, recipe=Recipe(paste=0.0, truth=0.5))
    for number in range(5):
        target = samples[number][1]
        assert target.shape == (7, 64, 64)
        assert int(target.min()) >= 127


def test_pack_keeps_names_masks_and_nearly_the_pictures(corpus: Corpus, tmp_path: Path) -> None:
    """Masks travel without loss, pictures as JPEG; a pack over the limit is refused."""
    write_pack(corpus, tmp_path / "pack.npz")
    packed = read(tmp_path / "pack.npz")
    assert packed.names == corpus.names
    assert np.array_equal(packed.masks, corpus.masks)
    assert packed.pictures.shape == corpus.pictures.shape
    difference = packed.pictures.astype(int).mean() - corpus.pictures.astype(int).mean()
    assert abs(difference) < 2
    with pytest.raises(DataError, match=r"limit 0\.01 MiB"):
        write_pack(corpus, tmp_path / "small.npz", limit_mib=0.01)


def test_absent_data_end_the_command_with_a_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback: the message names the folder that was looked for."""
    absent = tmp_path / "nowhere"
    monkeypatch.setattr("sys.argv", ["train", "--data", str(absent), "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="nowhere: no such folder or packed"):
        command.main()


def test_missing_mask_is_named(folder: Path, tmp_path: Path) -> None:
    """A picture without its mask stops the reading and names the mask."""
    (tmp_path / "images").symlink_to(folder / "images")
    (tmp_path / "masks").mkdir()
    with pytest.raises(DataError, match=r"20 masks missing, the first is disc_00\.png"):
        read(tmp_path)


def test_exported_weights_give_the_same_map(corpus: Corpus, tmp_path: Path) -> None:
    """An export read back computes what the network computed, whatever the memory layout."""
    network = Trainer(corpus, SETTINGS).average
    export(network, tmp_path / "weights.safetensors", note={})
    again = load_network(tmp_path / "weights.safetensors")
    picture = torch.from_numpy(normalise(corpus.pictures[1]))[None, :, :96, :96]
    with torch.inference_mode():
        assert torch.allclose(network(picture)[0], again(picture)[0], atol=1e-5)


def test_measure_knows_perfect_and_empty_masks(corpus: Corpus) -> None:
    """The truth itself scores 0 / 1 / 1; an empty mask scores its area, 0 IoU."""
    truth = corpus.masks[:3]
    perfect = measure([m.astype(np.float32) / 255 for m in truth], truth)
    assert (perfect.mae, perfect.iou) == (0.0, 1.0)
    assert math.isclose(perfect.max_f, 1.0)
    empty = measure([BASELINES["all-zero mask"](p) for p in corpus.pictures[:3]], truth)
    assert math.isclose(empty.mae, float(truth.mean()) / 255, rel_tol=1e-5)
    assert empty.iou == 0.0


def test_stretch_spans_zero_to_one_and_survives_a_constant() -> None:
    """Min-max normalisation as served; a constant map has no foreground."""
    stretched = stretch(np.array([[0.2, 0.4], [0.3, 0.2]], np.float32))
    assert (float(stretched.min()), float(stretched.max())) == (0.0, 1.0)
    assert not stretch(np.full((2, 2), 0.7, np.float32)).any()


def test_learning_rate_warms_up_and_ends_at_zero() -> None:
    """It peaks after the warm-up, measured in pixels, and is zero at the end."""
    settings = Settings((Phase(64, 1000, 4), Phase(128, 250, 4)), rate=1.0, warm_up=0.1)
    assert settings.rate_at(0) < 0.02
    assert math.isclose(settings.rate_at(200), 1.0)
    assert math.isclose(settings.rate_at(1000), 0.5 + 0.5 * math.cos(math.pi * 0.4 / 0.9))
    assert settings.rate_at(1250) < 1e-12


@pytest.mark.parametrize("text", ["112x100", "100x100x8", "112x4x8", "axbxc"])
def test_bad_phases_are_refused(text: str) -> None:
    """A side off the grid, too few pictures or a wrong form names the part that is wrong."""
    with pytest.raises(argparse.ArgumentTypeError, match=text):
        parse_phases(text)


def test_coarse_pass_gives_the_five_coarse_maps() -> None:
    """Leaving the finest stage out changes no other map before its last resize."""
    torch.manual_seed(0)
    network = U2Netp().eval()
    picture = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        coarse = network(picture, coarse=True)
        fine = network(picture)
    assert [tuple(m.shape) for m in coarse] == [(1, 1, 32, 32)] * 5
    enlarged = torch.nn.functional.interpolate(coarse[0], size=64, mode="bilinear")
    assert torch.allclose(enlarged, fine[2], atol=1e-5)


def test_soft_targets_of_other_pictures_are_refused(
    corpus: Corpus, folder: Path, tmp_path: Path
) -> None:
    """Soft maps belong to one list of names; with another list they would be shuffled."""
    fused = np.zeros((2, 320, 320), np.uint8)
    sides = np.zeros((2, 6, 160, 160), np.uint8)
    write_soft(tmp_path / "soft.npz", corpus.names[:2], fused, sides)
    with pytest.raises(DataError, match=r"made for other pictures \(2 names\)"):
        read(folder, soft=tmp_path / "soft.npz")
    with pytest.raises(DataError, match=r"absent\.npz: no such soft-target file"):
        read(folder, soft=tmp_path / "absent.npz")


def test_run_leaves_checkpoint_weights_metrics_and_goes_on(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command trains, exports the best weights, and a second call finds nothing left to do.

    The evaluation command then prints the same figures for the exported file.
    """
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


def test_device_normalisation_is_the_official_one(corpus: Corpus) -> None:
    """Whole batches on the device and single pictures in NumPy give one result."""
    pictures = corpus.pictures[:2]
    expected = np.stack([normalise(picture) for picture in pictures])
    actual = to_input(torch.from_numpy(pictures)).numpy()
    assert np.allclose(expected, actual, atol=1e-6)


def test_sharpening_scales_the_fused_logits_alone(corpus: Corpus) -> None:
    """The exported fused map is surer by the factor; side maps and the 0.5 contour stay."""
    trainer = Trainer(corpus, SETTINGS)
    picture = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        plain = trainer.calibrated(pictures=2)(picture)
        sharp = trainer.calibrated(pictures=2, sharpen=2.0)(picture)
    assert torch.allclose(2 * plain[0], sharp[0], atol=1e-5)
    assert torch.equal(plain[1], sharp[1])
