"""Build fixtures/tiny_bert: a random BERT and the logits Hugging Face transformers gives for it.

Run in an environment with torch and transformers: `python tests/models/networks/make_tiny_bert.py`.
"""

from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY += [chr(code) for code in range(ord("a"), ord("z") + 1)]
VOCABULARY += [f"##{chr(code)}" for code in range(ord("a"), ord("z") + 1)]
VOCABULARY += list("我你他好难过开心今天气死了怕不，。！？")
LABELS = ("angry", "happy", "neutral", "surprise", "sad", "fear")


def main() -> None:
    target = Path(__file__).parent / "fixtures" / "tiny_bert"
    target.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
        initializer_range=0.3,  # large, so that every part of the network moves the logits
    )
    model = BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "LayerNorm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    random = np.random.default_rng(7)
    ids = random.integers(5, config.vocab_size, (6, 24))
    lengths = [24, 1, 2, 9, 17, 23]
    mask = (np.arange(24) < np.array(lengths)[:, None]).astype(np.int64)
    ids = np.where(mask == 1, ids, config.pad_token_id)
    with torch.no_grad():
        logits = model(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).logits.numpy()
    model.save_pretrained(target)
    (target / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", "utf-8")
    np.savez_compressed(target / "expected.npz", input_ids=ids, attention_mask=mask, logits=logits)
    print(f"{sum(path.stat().st_size for path in target.iterdir())} bytes in {target.name}")


if __name__ == "__main__":
    main()
