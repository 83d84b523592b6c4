"""Trains the vocabulary and saves it as one ``tokenizer.json`` that needs no other code."""

from __future__ import annotations

import argparse
from pathlib import Path

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from training.emotion.prepare import load

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = range(5)
_LINK, _NAME = "🔗", "👤"
_PIECES = "|".join(
    (
        r"\[[^\[\]\s]{1,8}\]",  # Weibo's bracketed emoticons
        r"[\u4e00-\u9fff]+",
        r"[a-z]+",
        r"[0-9]",
        r"([^\w\s])\1{0,2}",  # punctuation and emoji, a repeat of up to three as one piece
        r"\S",
    )
)


def build() -> Tokenizer:
    """Return the untrained tokenizer: folding, links and names to one sign, BPE within runs."""
    tokenizer = Tokenizer(BPE(unk_token="[UNK]"))  # noqa: S106 - a token of texts
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"https?://[a-z0-9./?=&_%#:+~-]*"), _LINK),
            normalizers.Replace(Regex(r"@[\w·-]{1,24}"), _NAME),
            normalizers.Replace(Regex(r"[\u200b-\u200f\ufe0e\ufe0f\ufeff]+"), ""),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECES), "removed", invert=True)
    return tokenizer


def main() -> None:
    """Command line: ``python -m training.emotion.vocabulary --out …``, after ``prepare``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder that prepare wrote")
    parser.add_argument("--size", type=int, default=16000)
    arguments = parser.parse_args()
    posts = load(arguments.out / "train.jsonl") + load(arguments.out / "auxiliary.jsonl")
    reviews = [post.text for post in posts if post.task == "polarity"]
    texts = [post.text for post in posts if post.task != "polarity"] + reviews[::3]
    tokenizer = build()
    trainer = BpeTrainer(
        vocab_size=arguments.size,
        min_frequency=8,
        limit_alphabet=4600,
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    tokenizer.save(str(arguments.out / "tokenizer.json"))
    lengths = [len(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
    print(
        f"vocabulary {tokenizer.get_vocab_size()}, {len(lengths)} texts, {sum(lengths)} tokens, "
        f"{sum(length <= 128 for length in lengths) / len(lengths):.1%} within 128"
    )


if __name__ == "__main__":
    main()
