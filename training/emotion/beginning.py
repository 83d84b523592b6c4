"""Starts pre-training from a served version of the model instead of from random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from training.emotion.vocabulary import MASK

_PARTS = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}
"""Names within a layer: the served network's, and those of transformers."""


def begin(bert: nn.Module, tokenizer: Tokenizer, version: Path) -> None:
    """Copy the encoder of a served version into ``bert``, which has the same width and depth.

    A piece that the version's own vocabulary lacks begins as the mean of the pieces that it
    would have been split into there.
    """
    # Paddle is needed here alone, and says things when it is imported.
    from paddlepool.models.networks import load_parameters

    served = {name: np.asarray(value) for name, value in load_parameters(version).items()}
    state = bert.state_dict()
    old = Tokenizer.from_file(str(version / "tokenizer.json"))
    words = served["word_embeddings.weight"].astype(np.float32)
    state["embeddings.word_embeddings.weight"] = translated(words, old, tokenizer)
    places = torch.from_numpy(served["position_embeddings.weight"].astype(np.float32))
    # The export added the vector of token type 0 to every position.
    state["embeddings.position_embeddings.weight"][: len(places)] = places
    state["embeddings.token_type_embeddings.weight"][:] = 0
    names = {"embeddings_norm": "embeddings.LayerNorm", "pooler": "pooler.dense"}
    depth = sum(name.endswith("attention.query.weight") for name in served)
    for number in range(depth):
        for here, there in _PARTS.items():
            names[f"layers.{number}.{here}"] = f"encoder.layer.{number}.{there}"
    for here, there in names.items():
        for kind in ("weight", "bias"):
            value = torch.from_numpy(served[f"{here}.{kind}"].astype(np.float32))
            if f"{there}.{kind}" in state:
                # Paddle's linear layers multiply from the right.
                state[f"{there}.{kind}"] = value.T.contiguous() if value.dim() == 2 else value
    bert.load_state_dict(state)


def translated(words: npt.NDArray[np.float32], old: Tokenizer, new: Tokenizer) -> Tensor:
    """Return ``[new pieces, width]``: old vectors under the new vocabulary's numbers."""
    known = old.get_vocab()
    result = np.zeros((new.get_vocab_size(), words.shape[1]), dtype=np.float32)
    typical = words[MASK + 1 :].mean(axis=0)
    for piece, number in new.get_vocab().items():
        if piece in known:
            result[number] = words[known[piece]]
            continue
        parts = [n for n in old.encode(piece, add_special_tokens=False).ids if n > MASK]
        result[number] = words[parts].mean(axis=0) if parts else typical
    return torch.from_numpy(result)
