"""The `[parameters]` of a sentiment model's config.toml, checked against the model's tensors."""

from __future__ import annotations

from itertools import pairwise

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.contracts.errors import ConfigError
from app.contracts.ports import ServedModelInfo
from app.models.repository.config import parse_parameters

INPUTS = ("attention_mask", "input_ids")
BUCKETS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


class Parameters(BaseModel):
    """Labels in the order of the logits, their Chinese names, and how texts are padded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    labels: tuple[str, ...] = Field(min_length=1)
    labels_zh: tuple[str, ...] | None = None
    buckets: tuple[int, ...] = Field(default=BUCKETS, min_length=1)
    max_tokens: int = Field(default=512, ge=3)
    pad_id: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _agree(self) -> Parameters:
        if self.labels_zh is not None and len(self.labels_zh) != len(self.labels):
            raise ValueError(f"{len(self.labels_zh)} labels_zh for {len(self.labels)} labels")
        if self.buckets[0] < 1 or any(low >= high for low, high in pairwise(self.buckets)):
            raise ValueError(f"buckets must rise from 1 or more, received {list(self.buckets)}")
        if self.max_tokens > self.buckets[-1]:
            raise ValueError(
                f"max_tokens {self.max_tokens} does not fit the largest bucket {self.buckets[-1]}"
            )
        return self

    def lengths(self) -> tuple[int, ...]:
        """The buckets in use: those below the model's maximum, and the maximum itself."""
        return (*(size for size in self.buckets if size < self.max_tokens), self.max_tokens)


def read_parameters(info: ServedModelInfo) -> Parameters:
    """Read the parameters. Raises ConfigError if they are wrong or do not fit the tensors."""
    parameters = parse_parameters(info, Parameters)
    taken = tuple(sorted(spec.name for spec in info.inputs))
    if taken != INPUTS or any(spec.dtype != "int64" for spec in info.inputs):
        raise ConfigError(
            f"{info.name} takes {', '.join(f'{s.name} ({s.dtype})' for s in info.inputs)}; "
            f"the sentiment task feeds {' and '.join(INPUTS)} as int64"
        )
    logits = info.outputs[0]
    if len(info.outputs) != 1 or len(logits.shape) != 2:
        raise ConfigError(
            f"{info.name} returns {len(info.outputs)} tensors, the first of {len(logits.shape)} "
            "axes; the sentiment task expects one tensor [texts, labels] of logits"
        )
    if logits.shape[1] not in (-1, len(parameters.labels)):
        raise ConfigError(
            f"{info.name} returns {logits.shape[1]} logits for {len(parameters.labels)} labels"
        )
    return parameters
