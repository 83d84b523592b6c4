"""Prints a trained classifier's quality on the eval splits and the smoke sentences."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import BertForSequenceClassification

from training.emotion.batching import pad, shuffled
from training.emotion.corpora import LABELS, Post, smp
from training.emotion.prepare import key
from training.emotion.quality import Floats, Quality, measure, softmax
from training.emotion.vocabulary import PAD

BENCHMARK = "妈妈说想和我聊天，她一定是有难过的事了。。。我要上课，所以我好难过。。"
SENTENCES = tuple(Path(__file__).with_name(f"{name}.jsonl") for name in ("smoke", "everyday"))


def encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each text, special tokens included."""
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]


def logits(
    model: BertForSequenceClassification, texts: Sequence[Sequence[int]], *, tokens: int = 8192
) -> Floats:
    """Return ``[n, 6]`` logits in the order of ``texts``."""
    was_training, device = model.training, model.device
    model.eval()
    result = np.zeros((len(texts), len(LABELS)))
    lengths = np.array([len(text) for text in texts])
    with torch.inference_mode():
        for rows in shuffled(lengths, tokens=tokens, rng=np.random.default_rng(0)):
            ids = torch.from_numpy(pad(texts, rows)).to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                output = model(ids, attention_mask=(ids != PAD).long()).logits
            result[rows] = output.double().cpu().numpy()
    model.train(was_training)
    return result


def _figures(quality: Quality) -> dict[str, object]:
    return {
        name: {label: round(part, 4) for label, part in value.items()}
        if isinstance(value, dict)
        else round(value, 4)
        for name, value in asdict(quality).items()
    }


def main() -> None:
    """Command line: ``python -m training.emotion.evaluate --data … --model …``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with smp2020_ewect")
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--wrong", type=int, default=0, help="print the surest mistakes")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    model = BertForSequenceClassification.from_pretrained(arguments.model, dtype=torch.float32)

    def scores(posts: Sequence[Post]) -> tuple[Floats, np.ndarray]:
        labels = np.array([LABELS.index(post.label) for post in posts])
        return logits(model, encoded(tokenizer, [post.text for post in posts])), labels

    report: dict[str, object] = {"parameters": sum(p.numel() for p in model.parameters())}
    for split in ("usual", "virus"):
        posts = list(smp(arguments.data, f"{split}_eval"))
        seen = {key(post.text) for post in smp(arguments.data, f"{split}_train")}
        fresh = np.array([key(post.text) not in seen for post in posts])
        output, labels = scores(posts)
        report[f"{split}_eval"] = _figures(measure(output, labels))
        report[f"{split}_eval_without_duplicates"] = _figures(measure(output[fresh], labels[fresh]))
        if split == "usual" and arguments.wrong:
            chances = softmax(output)
            chances[chances.argmax(axis=1) == labels] = 0
            for row in np.argsort(-chances.max(axis=1))[: arguments.wrong]:
                guess = LABELS[int(chances[row].argmax())]
                print(
                    f"{posts[row].label} taken for {guess} {chances[row].max():.2f}: "
                    f"{posts[row].text}"
                )
    for path in SENTENCES:
        lines = path.read_text("utf-8").removesuffix("\n").split("\n")
        own = [Post(**json.loads(line), task="smp", source=path.stem) for line in lines]
        output, labels = scores(own)
        for row in np.flatnonzero(output.argmax(axis=1) != labels):
            guess, chance = LABELS[int(output[row].argmax())], softmax(output)[row].max()
            print(f"{path.stem}: {own[row].label} for {guess} {chance:.2f}: {own[row].text}")
        report[f"{path.stem}_right"] = int((output.argmax(axis=1) == labels).sum())
        report[f"{path.stem}_texts"] = len(own)
    sample = softmax(logits(model, encoded(tokenizer, [BENCHMARK])))[0]
    report["benchmark_sentence"] = {
        label: round(float(chance), 4) for label, chance in zip(LABELS, sample, strict=True)
    }
    text = json.dumps(report, indent=1, ensure_ascii=False)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
