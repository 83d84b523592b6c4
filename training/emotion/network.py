"""The encoder's shape, and the heads that exist only while it is pre-trained."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, BertModel
from transformers.models.bert.modeling_bert import BertPooler

from training.emotion.batching import WIDTHS
from training.emotion.corpora import LABELS, TASKS
from training.emotion.signs import SIGNS
from training.emotion.vocabulary import PAD

CLASSES = [(task, label) for task, labels in TASKS.items() for label in labels]
"""Every class of every annotation scheme, side by side in one output layer."""

LOSSES = ("words", "replaced", "labels", "signs", "emotions")
"""What pre-training asks, in the order of the losses."""


def halved(device: torch.device) -> bool:
    """Whether to compute in bfloat16: a processor without it takes five times as long."""
    return device.type == "cuda" or torch.cpu._is_avx512_bf16_supported()


def config(vocabulary: int, *, layers: int, width: int, dropout: float) -> BertConfig:
    """Return a standard BERT configuration that names the six served classes."""
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=WIDTHS[-1],
        type_vocab_size=2,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        pad_token_id=PAD,
        id2label=dict(enumerate(LABELS)),
        label2id={label: number for number, label in enumerate(LABELS)},
    )


def contextual(bert: BertModel, ids: Tensor, owner: Tensor, place: Tensor) -> Tensor:
    """Return the encoder's ``[rows, width, hidden]`` of packed texts that do not see one another.

    Equal to the encoder on each text alone; no dropout. ``owner`` and ``place`` are those of
    ``packing.Packed``.
    """
    hidden: Tensor = bert.embeddings(ids, position_ids=place)
    together = (owner[:, :, None] == owner[:, None, :])[:, None]
    heads = bert.config.num_attention_heads
    for layer in bert.encoder.layer:
        own = layer.attention.self
        query, key, value = (
            part(hidden).unflatten(-1, (heads, -1)).transpose(1, 2)
            for part in (own.query, own.key, own.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, together)
        merged = mixed.transpose(1, 2).flatten(2)
        hidden = layer.attention.output(merged, hidden)
        hidden = layer.output(layer.intermediate(hidden), hidden)
    return hidden


@dataclass(frozen=True, slots=True)
class Wanted:
    """Targets of a batch's texts, ``[texts]`` each.

    ``first`` is where each begins in the flattened ids; ``label`` is a place in ``CLASSES``
    (-100: none) among those of ``task``; ``signs`` ``[texts, SIGNS]`` and ``emotion``
    ``[texts, 6]`` are shares, all 0 without a target.
    """

    first: Tensor
    task: Tensor
    label: Tensor
    signs: Tensor
    emotion: Tensor


class Pretraining(nn.Module):
    """Guesses hidden words, replaced words, each corpus's labels, emoticons and emotions."""

    allowed: Tensor

    def __init__(self, shape: BertConfig) -> None:
        super().__init__()
        width = shape.hidden_size
        self.language = BertForMaskedLM(shape)
        self.pooler = BertPooler(shape)
        self.classes = nn.Linear(width, len(CLASSES))
        self.signs = nn.Linear(width, SIGNS)
        self.emotions = nn.Linear(width, len(LABELS))
        self.judge = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))
        names = list(TASKS)
        allowed = [[owner == task for owner, _ in CLASSES] for task in names]
        self.register_buffer("allowed", torch.tensor(allowed), persistent=False)

    def forward(
        self,
        ids: Tensor,
        owner: Tensor,
        place: Tensor,
        hidden: Tensor,
        words: Tensor,
        replaced: Tensor,
        wanted: Wanted,
    ) -> Tensor:
        """Return the losses in the order of ``LOSSES``; the arguments are those of ``Corrupted``.

        Sums are divided here: the mean over a batch without any label is not a number.
        """
        cross = nn.functional.cross_entropy
        context = contextual(self.language.bert, ids, owner, place)
        flat = context.flatten(0, 1)
        missing = cross(self.language.cls(flat[hidden]).float(), words)

        judged = (replaced >= 0).float()
        doubt = self.judge(context).squeeze(-1).float()
        strange = nn.functional.binary_cross_entropy_with_logits(
            doubt, replaced.clamp(min=0), judged, reduction="sum"
        )

        pooled = self.pooler(flat[wanted.first][:, None])
        pooled = nn.functional.dropout(pooled, 0.1, self.training)
        scores = self.classes(pooled).float().masked_fill(~self.allowed[wanted.task], -1e4)
        labelled = cross(scores, wanted.label, reduction="sum")
        losses = [
            missing,
            strange / judged.sum(),
            labelled / (wanted.label >= 0).sum().clamp(min=1),
        ]
        for head, shares in ((self.signs, wanted.signs), (self.emotions, wanted.emotion)):
            chances = nn.functional.log_softmax(head(pooled).float(), dim=-1)
            losses.append(-(shares * chances).sum() / shares.sum().clamp(min=1))
        return torch.stack(losses)
