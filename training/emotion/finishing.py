"""Calibrates a fine-tuned network on the held-out posts and saves it whole or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import BertForSequenceClassification

from training.emotion.corpora import LABELS, Post
from training.emotion.evaluate import encoded, logits
from training.emotion.quality import measure, rare_lift, temperature


def calibrated(
    model: BertForSequenceClassification,
    train: Sequence[Post],
    dev: Sequence[Post],
    tokenizer: Tokenizer,
) -> dict[str, object]:
    """Fold the lift of rare classes and the temperature into the last layer.

    Both are chosen on the held-out posts of the usual task, whose figures are returned.
    """
    judged = [post for post in dev if post.source == "usual_train"]
    ids = encoded(tokenizer, [post.text for post in judged])
    labels = np.array([LABELS.index(post.label) for post in judged])
    shares = np.bincount([LABELS.index(post.label) for post in train], minlength=6) / len(train)
    scores = logits(model, ids)
    lift = rare_lift(scores, labels, shares)
    raised = -lift * np.log(shares)
    divisor = temperature(scores + raised, labels)
    with torch.no_grad():
        model.classifier.bias.add_(torch.from_numpy(raised))
        model.classifier.weight.div_(divisor)
        model.classifier.bias.div_(divisor)
    report: dict[str, object] = asdict(measure(logits(model, ids), labels))
    return report | {"temperature": divisor, "lift": lift}


def saved(
    model: BertForSequenceClassification,
    folder: Path,
    tokenizer: Path,
    report: Mapping[str, object],
) -> None:
    """Write the Hugging Face folder, replacing an older one only when it is complete."""
    fresh = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    model.save_pretrained(fresh)
    shutil.copy(tokenizer, fresh / "tokenizer.json")
    (fresh / "dev.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    fresh.replace(folder)
