"""The emotion training code: clean splits, masking, calibration and the saved folder."""

from __future__ import annotations

import json
import sys
import zipfile
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

from app.quality.labels import calibration_error  # noqa: E402
from training.emotion import finetune, linear, prepare, vocabulary  # noqa: E402
from training.emotion.annotation import joined  # noqa: E402
from training.emotion.batching import WIDTHS, pad, shuffled  # noqa: E402
from training.emotion.corpora import LABELS, TASKS, Post  # noqa: E402
from training.emotion.evaluate import encoded, logits  # noqa: E402
from training.emotion.network import Pretraining, config  # noqa: E402
from training.emotion.prepare import Overlap, key  # noqa: E402  # type: ignore[attr-defined]
from training.emotion.quality import measure, softmax, temperature  # noqa: E402
from training.emotion.targets import masking  # noqa: E402
from training.emotion.vocabulary import CLS, MASK, PAD, SEP  # noqa: E402

WORDS = ("生气讨厌", "开心快乐", "报告会议", "居然竟然", "难过伤心", "害怕恐惧")


def _run(module: object, monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["command", *map(str, words)])
    module.main()  # type: ignore[attr-defined]


def _post(number: int, label: int) -> str:
    tail = "".join(chr(0x4E00 + (37 * number + 11 * place) % 900) for place in range(12))
    return f"{WORDS[label]}{tail}"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A corpora folder of the real layout, 40 posts a class, each class with words of its own."""
    root = tmp_path / "data"
    (root / "smp2020_ewect").mkdir(parents=True)
    (root / "zh_corpora").mkdir()
    for split in ("usual_train", "virus_train", "usual_eval", "virus_eval"):
        count = 240 if split.endswith("train") else 12
        first = 500 if split.startswith("virus") else 0
        rows = [
            {"id": n, "content": _post(n, n % 6), "label": LABELS[n % 6]}
            for n in range(first, first + count)
        ]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (root / "smp2020_ewect" / f"{split}.jsonl").write_text(text, encoding="utf-8")
    files = {
        "cluemotion2020_test.txt": '{"content": "今天真开心快乐呀", "label": "happiness"}\n',
        "cluemotion2020_valid.txt": '{"content": "心里难过伤心", "label": "sadness"}\n',
        "spianmo_Nlpcc2013Train.tsv": "标签,文本\nfear,夜里害怕恐惧极了\n",
        "spianmo_lstm_sentiment_classification_8_total.txt": "anger:生气讨厌的一天\n",
        "spianmo_simplifyweibo_5_moods.csv": "like,喜欢这首歌\n",
        "covid_weibo_labeledData.csv": "review,label\n武汉加油,2\n",
        "ChnSentiCorp_htl_all.csv": "label,review\n1,房间很大\n",
        "waimai_10k.csv": "label,review\n0,送餐太慢\n",
    }
    for name, content in files.items():
        (root / "zh_corpora" / name).write_text(content, encoding="utf-8")
    with zipfile.ZipFile(root / "zh_corpora" / "online_shopping_10_cats.zip", "w") as archive:
        archive.writestr("online_shopping_10_cats.csv", "cat,label,review\n书籍,1,很好的书\n")
    return root


def test_absent_data_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the corpora the command ends with the missing file's name."""
    with pytest.raises(SystemExit, match=r"training data absent: .*usual_eval\.jsonl"):
        _run(prepare, monkeypatch, "--data", tmp_path, "--out", tmp_path / "out")


def test_overlap_is_found_through_punctuation_and_comments() -> None:
    """A post is kept out if it is an eval post with other punctuation, or holds one."""
    forbidden = Overlap(["今天的天气真好啊，我们一起出去玩吧！"])
    assert "今天的天气真好啊 我们一起出去玩吧" in forbidden
    assert "转发：今天的天气真好啊，我们一起出去玩吧！//@某人:同意" in forbidden
    assert "明天有雨，出门的时候记得带伞" not in forbidden


def test_masking_hides_a_fifth_of_real_tokens_only() -> None:
    """Padding and special tokens are never guessed; the wanted tokens are the original ones."""
    ids = np.full((8, 64), PAD)
    ids[:, 0], ids[:, 1:40], ids[:, 40] = CLS, 77, SEP
    changed, positions, wanted = masking(ids, vocabulary=100, rng=np.random.default_rng(0))
    real = wanted >= 0
    assert real.sum() == int(0.2 * 8 * 39) + 1
    assert (ids.reshape(-1)[positions[real]] == wanted[real]).all()
    assert (changed[:, 0] == CLS).all()
    assert 0.6 < (changed == MASK).sum() / real.sum() < 0.95
    assert len(positions) == int(0.2 * ids.size)


def test_batches_hold_every_text_once_in_few_shapes() -> None:
    """Each text occurs once an epoch; exact batches have one shape a width."""
    lengths = np.random.default_rng(0).integers(1, 200, 500)
    batches = shuffled(lengths, tokens=512, rng=np.random.default_rng(0), exact=True)
    rows = np.concatenate(batches)
    assert sorted(rows[rows >= 0]) == list(range(500))
    texts = [[9] * int(length) for length in lengths]
    assert len({pad(texts, batch).ids.shape for batch in batches}) <= len(WIDTHS)


def test_temperature_undoes_overconfidence() -> None:
    """Logits three times too large are divided by about three and then well calibrated."""
    rng = np.random.default_rng(0)
    honest = rng.normal(size=(20000, 6)) * 1.5
    labels = (softmax(honest).cumsum(axis=1) > rng.random((20000, 1))).argmax(axis=1)
    divisor = temperature(3 * honest, labels)
    assert divisor == pytest.approx(3, rel=0.05)
    assert calibration_error(softmax(3 * honest), labels) > 0.1
    assert calibration_error(softmax(3 * honest / divisor), labels) < 0.02


def test_macro_f1_counts_an_absent_class_as_zero() -> None:
    """A class never guessed and never true contributes 0, as five of six right show."""
    labels = np.arange(5)
    found = measure(np.eye(6)[labels] * 9, labels)
    assert found.accuracy == 1.0
    assert found.macro_f1 == pytest.approx(5 / 6)


def test_foreign_labels_sharpen_a_teacher() -> None:
    """A doubtful text goes with the emotion that its foreign label usually accompanies."""
    posts = [Post("x", "clue", "sadness", "clue")] * 20 + [Post("x", "clue", "anger", "clue")] * 20
    chances = np.full((40, 6), 0.01)
    chances[:19, LABELS.index("sad")] = chances[20:39, LABELS.index("angry")] = 0.95
    chances[[19, 39], LABELS.index("sad")] = chances[[19, 39], LABELS.index("angry")] = 0.48
    sharpened = joined(chances, posts)
    assert sharpened[19].argmax() == LABELS.index("sad")
    assert sharpened[39].argmax() == LABELS.index("angry")
    assert sharpened.sum(axis=1) == pytest.approx(np.ones(40))


def test_every_step_to_a_saved_classifier(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From corpora to a folder that transformers loads and that tells the classes apart."""
    out = tmp_path / "run"
    _run(prepare, monkeypatch, "--data", data, "--out", out)
    evaluation = {key(_post(n, n % 6)) for n in range(12)}
    for name in ("train.jsonl", "dev.jsonl", "auxiliary.jsonl"):
        assert not evaluation & {key(post.text) for post in prepare.load(out / name)}
    _run(vocabulary, monkeypatch, "--out", out, "--size", "1200")
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    assert tokenizer.encode("ＡＢ http://t.cn/x @某人 [泪]").tokens[0] == "[CLS]"
    _run(linear, monkeypatch, "--out", out, "--folds", "2")

    torch.manual_seed(0)
    torch.set_num_threads(1)
    shape = config(tokenizer.get_vocab_size(), layers=1, width=64, dropout=0.0)
    state = {"model": Pretraining(shape).state_dict(), "config": shape.to_dict()}
    torch.save(state, out / "pretrain.pt")
    arguments = ("--out", out, "--name", "hf", "--threads", "1", "--tokens", "256")
    _run(finetune, monkeypatch, *arguments, "--epochs", "12", "--rate", "2e-3")

    model = BertForSequenceClassification.from_pretrained(out / "hf")
    assert [model.config.id2label[n] for n in range(6)] == list(LABELS)
    texts = [_post(n, n % 6) for n in range(12)]
    guesses = logits(model, encoded(tokenizer, texts)).argmax(axis=1)
    assert (guesses == np.arange(12) % 6).mean() > 0.8
    assert set(TASKS) >= {post.task for post in prepare.load(out / "auxiliary.jsonl")}
