"""BERT for sequence classification, equal to Hugging Face's BertForSequenceClassification.

The network has a post-layer-norm encoder, absolute positions, exact (erf) GELU and a tanh pooler.
The embedding of token type 0 is added to the position embeddings when weights are imported, because
a served text has one segment. The last layer computes only its first position: the pooler reads no
other.

`BertClassifier` is the network in the form for training. `StaticBertClassifier` computes the same
function of the same parameters with fewer operators per run: Paddle Inference evaluates expressions
that contain only parameters once, when it loads the program. docs/decisions/0029 has the gains.
"""

from dataclasses import dataclass

import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

MASKED = -1e9  # added to a padded position's score: exp() of it is exactly 0 in float32


@dataclass(frozen=True, slots=True)
class BertConfig:
    """Dimensions of the network, with the field names of Hugging Face's config.json."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    num_labels: int
    layer_norm_eps: float = 1e-12


class SelfAttention(nn.Layer):
    """Multi-head attention of `queries` [N,Q,hidden] over `x` [N,L,hidden] to [N,Q,hidden].

    Keys and values come from `x`. `bias` [N,1,1,L] is added to the scores.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.heads = config.num_attention_heads
        self.width = hidden // self.heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)

    def split_heads(self, x: Tensor) -> Tensor:
        # 0 copies the dimension from the input, so batch and length stay dynamic.
        return x.reshape([0, 0, self.heads, self.width]).transpose([0, 2, 1, 3])

    def forward(self, queries: Tensor, x: Tensor, bias: Tensor) -> Tensor:
        query, key, value = (
            self.split_heads(self.query(queries)),
            self.split_heads(self.key(x)),
            self.split_heads(self.value(x)),
        )
        scores = paddle.matmul(query, key, transpose_y=True) * self.width**-0.5
        mixed = paddle.matmul(F.softmax(scores + bias, axis=-1), value)
        merged = mixed.transpose([0, 2, 1, 3]).reshape([0, 0, self.heads * self.width])
        return self.output(merged)


class EncoderLayer(nn.Layer):
    """Attention and feed-forward, each followed by residual addition and layer norm.

    Only the positions in `queries` [N,Q,hidden] are computed: all or some of those in `x`
    [N,L,hidden].
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.layer_norm_eps
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(hidden, epsilon=eps)
        self.intermediate = nn.Linear(hidden, config.intermediate_size)
        self.output = nn.Linear(config.intermediate_size, hidden)
        self.output_norm = nn.LayerNorm(hidden, epsilon=eps)

    def forward(self, queries: Tensor, x: Tensor, bias: Tensor) -> Tensor:
        x = self.attention_norm(queries + self.attention(queries, x, bias))
        return self.output_norm(x + self.output(F.gelu(self.intermediate(x))))


class BertClassifier(nn.Layer):
    """Maps int64 `input_ids` and `attention_mask` [N,L] (1 = real token) to logits [N,labels].

    The logits are float32.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, hidden)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, hidden)
        self.embeddings_norm = nn.LayerNorm(hidden, epsilon=config.layer_norm_eps)
        self.layers = nn.LayerList([EncoderLayer(config) for _ in range(config.num_hidden_layers)])
        self.pooler = nn.Linear(hidden, hidden)
        self.classifier = nn.Linear(hidden, config.num_labels)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        positions = self.position_embeddings(paddle.arange(paddle.shape(input_ids)[1]))
        x = self.embeddings_norm(self.word_embeddings(input_ids) + positions)
        bias = (1.0 - attention_mask.astype("float32")).unsqueeze([1, 2]) * MASKED
        for layer in self.layers[:-1]:
            x = layer(x, x, bias)
        first = self.layers[-1](x[:, :1], x, bias)
        return self.classifier(F.tanh(self.pooler(first[:, 0])))


class StaticBertClassifier(BertClassifier):
    """The form of `BertClassifier` for export: the same parameters and fewer operators.

    The outputs are equal up to float32 rounding. The scale of the scores is multiplied into the
    query's weights and bias. The softmax of a row sums to 1, so the value's bias passes through
    unchanged and is folded into the output's bias. The mask is expanded to the shape of the scores
    once: Paddle's own kernels add equal shapes many times faster than they broadcast.
    """

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        length = paddle.shape(input_ids)[1]
        positions = self.position_embeddings.weight[:length]
        x = self.embeddings_norm(self.word_embeddings(input_ids) + positions)
        bias = (1.0 - attention_mask.astype("float32")).unsqueeze([1, 2]) * MASKED
        heads = self.layers[0].attention.heads
        # `length` is also given for the last axis: a mask of another length must fail here, and
        # not be read past its end.
        wide = bias.expand([-1, heads, length, length])
        for layer in self.layers[:-1]:
            x = _encode(layer, x, x, wide)
        first = _encode(self.layers[-1], x[:, :1], x, wide[:, :, :1])
        return self.classifier(F.tanh(self.pooler(first[:, 0])))


def _encode(layer: EncoderLayer, queries: Tensor, x: Tensor, bias: Tensor) -> Tensor:
    x = layer.attention_norm(queries + _attend(layer.attention, queries, x, bias))
    return layer.output_norm(x + layer.output(F.gelu(layer.intermediate(x))))


def _attend(attention: SelfAttention, queries: Tensor, x: Tensor, bias: Tensor) -> Tensor:
    scale = attention.width**-0.5
    query, value, output = attention.query, attention.value, attention.output
    scaled = F.linear(queries, query.weight * scale, query.bias * scale)
    scores = paddle.matmul(
        attention.split_heads(scaled), attention.split_heads(attention.key(x)), transpose_y=True
    )
    values = attention.split_heads(paddle.matmul(x, value.weight))
    mixed = paddle.matmul(F.softmax(scores + bias, axis=-1), values)
    merged = mixed.transpose([0, 2, 1, 3]).reshape([0, 0, attention.heads * attention.width])
    passed = paddle.matmul(value.bias.unsqueeze(0), output.weight).squeeze(0)
    return F.linear(merged, output.weight, output.bias + passed)
