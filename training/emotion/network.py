"""The encoder's shape, and the heads that exist only while it is pre-trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM
from transformers.models.bert.modeling_bert import BertPooler

from training.emotion.batching import WIDTHS
from training.emotion.corpora import LABELS, TASKS
from training.emotion.vocabulary import PAD

CLASSES = [(task, label) for task, labels in TASKS.items() for label in labels]
"""Every class of every annotation scheme, side by side in one output layer."""


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


class Pretraining(nn.Module):
    """Guesses masked tokens and, from the first position, each corpus's own labels."""

    allowed: Tensor

    def __init__(self, shape: BertConfig) -> None:
        super().__init__()
        self.language = BertForMaskedLM(shape)
        self.pooler = BertPooler(shape)
        self.classes = nn.Linear(shape.hidden_size, len(CLASSES))
        names = list(TASKS)
        allowed = [[owner == task for owner, _ in CLASSES] for task in names]
        self.register_buffer("allowed", torch.tensor(allowed), persistent=False)

    def forward(
        self,
        ids: Tensor,
        masked: Tensor,
        wanted: Tensor,
        task: Tensor,
        label: Tensor,
        emotion: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the losses of the words, of the corpora's labels and of the emotions.

        ``ids`` is ``[n, width]``; ``masked`` numbers positions of the flattened ids and
        ``wanted`` holds their tokens (-100: nothing); ``task`` and ``label`` are ``[n]``,
        the label being a place in ``CLASSES`` (-100: unlabelled).
        """
        hidden = self.language.bert(ids, attention_mask=(ids != PAD).long())[0]
        chosen = hidden.reshape(-1, hidden.shape[-1])[masked]
        words = nn.functional.cross_entropy(self.language.cls(chosen).float(), wanted)
        pooled = nn.functional.dropout(self.pooler(hidden), 0.1, self.training)
        every = self.classes(pooled).float()
        chances = nn.functional.log_softmax(every[:, : len(LABELS)], dim=-1)
        feelings = -(emotion * chances).sum() / emotion.sum().clamp(min=1)
        scores = every.masked_fill(~self.allowed[task], -1e4)
        # Summed and divided here: the mean over a batch without any label is not a number.
        right = nn.functional.cross_entropy(scores, label, reduction="sum")
        return words, right / (label >= 0).sum().clamp(min=1), feelings
