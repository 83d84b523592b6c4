"""Corpora in miniature, of the layout that the training data have."""

import gzip
import json
import sys
import zipfile
from pathlib import Path

import pytest

LABELS = ("angry", "happy", "neutral", "surprise", "sad", "fear")
WORDS = ("生气讨厌", "开心快乐", "报告会议", "居然竟然", "难过伤心", "害怕恐惧")


MORE = {
    "alt/spianmo_lstm8_with_punct": "anger",
    "alt/ocemotion_overlap_with_punct": "sadness",
    "lab_cped_dialogue": "worried",
    "lab_nlpcc2014_test_weibo": "none",
    "lab_nlpcc2014_train_sentences": "none",
    "lab_nlpcc2018_codemixed": "sadness+fear",
    "lab_ocemotion_tianchi": "fear",
    "lab_simplifyweibo_part": "angry",
    "lab_weibo_emotion_cause": "none",
    "pol_weibo2018": "positive",
    "pol_weibo_senti_100k_part": "negative",
    "raw_lccc_toy": None,
}


def run(module: object, monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    """Run a module's command line."""
    monkeypatch.setattr(sys, "argv", ["command", *map(str, words)])
    module.main()  # type: ignore[attr-defined]


def post(number: int, label: int) -> str:
    """Return a text with words of its class and others of its own."""
    tail = "".join(chr(0x4E00 + (37 * number + 11 * place) % 900) for place in range(12))
    return f"{WORDS[label]}{tail}"


@pytest.fixture
def corpora(tmp_path: Path) -> Path:
    """A data folder of the real layout, 40 posts a class, each class with words of its own."""
    root = tmp_path / "data"
    (root / "smp2020_ewect").mkdir(parents=True)
    (root / "zh_corpora").mkdir()
    for split in ("usual_train", "virus_train", "usual_eval", "virus_eval"):
        count = 240 if split.endswith("train") else 12
        first = 500 if split.startswith("virus") else 0
        rows = [
            {"id": n, "content": post(n, n % 6), "label": LABELS[n % 6]}
            for n in range(first, first + count)
        ]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (root / "smp2020_ewect" / f"{split}.jsonl").write_text(text, encoding="utf-8")
    files = {
        "cluemotion2020_test.txt": '{"content": "今天真开心快乐呀", "label": "happiness"}\n',
        "cluemotion2020_valid.txt": '{"content": "心里难过伤心", "label": "sadness"}\n',
        "spianmo_Nlpcc2013Train.tsv": "标签,文本\nfear,夜里害怕恐惧极了\n",
        "spianmo_simplifyweibo_5_moods.csv": "like,喜欢这首歌\n",
        "covid_weibo_labeledData.csv": "review,label\n武汉加油,2\n",
        "ChnSentiCorp_htl_all.csv": "label,review\n1,房间很大\n",
        "waimai_10k.csv": "label,review\n0,送餐太慢\n",
    }
    for name, content in files.items():
        (root / "zh_corpora" / name).write_text(content, encoding="utf-8")
    with zipfile.ZipFile(root / "zh_corpora" / "online_shopping_10_cats.zip", "w") as archive:
        archive.writestr("online_shopping_10_cats.csv", "cat,label,review\n书籍,1,很好的书\n")
    more = root / "zh_corpora2"
    (more / "alt").mkdir(parents=True)
    for name, label in MORE.items():
        rows = [{"text": post(900 + n, n % 6), "label": label} for n in range(3)]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (more / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return root
