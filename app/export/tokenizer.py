"""tokenizer.json for a text model, copied or built from a plain vocab.txt."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

from app.contracts.errors import ExportError


def write_tokenizer(source: Path, target: Path) -> None:
    """Writes `target/tokenizer.json` from a Hugging Face directory.

    Padding and truncation stored in the file are removed: the pipeline buckets lengths itself.
    Raises ExportError when there is neither tokenizer.json nor vocab.txt, or it cannot be read.
    """
    tokenizer = _read(source)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.save(str(target / "tokenizer.json"), pretty=False)


def _read(source: Path) -> Tokenizer:
    path = source / "tokenizer.json"
    if path.is_file():
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the Rust binding raises bare Exception
            raise ExportError(f"{path} is not a tokenizer: {error}") from error
    vocabulary = source / "vocab.txt"
    if not vocabulary.is_file():
        raise ExportError(f"{source} has neither tokenizer.json nor vocab.txt")
    words = vocabulary.read_text("utf-8").splitlines()
    missing = [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in words]
    if missing:
        raise ExportError(f"{vocabulary} lacks the special tokens {', '.join(missing)}")
    lowercase = _settings(source).get("do_lower_case", True)
    words_by_id = {word: index for index, word in enumerate(words)}
    return BertWordPieceTokenizer(words_by_id, lowercase=bool(lowercase))._tokenizer


def _settings(source: Path) -> dict[str, Any]:
    path = source / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ExportError(f"{path} is not JSON: {error}") from error
    return settings if isinstance(settings, dict) else {}
