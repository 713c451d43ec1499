"""SmolLM2 (Llama architecture) in plain numpy, float32 throughout.

The key/value cache is memory of the caller: this module reads and writes it through numpy arrays of
shape [max_tokens, kv_heads, head_size], one pair for each layer, and never allocates its own. So the
same code runs on memory that datadist allocated, in whatever process that lies.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Shape:
    """The numbers of the architecture; the defaults are those of SmolLM2-135M."""

    layers: int = 30
    width: int = 576
    hidden: int = 1536
    heads: int = 9
    kv_heads: int = 3
    head_size: int = 64
    vocabulary: int = 49152
    rope_base: float = 100000.0
    epsilon: float = 1e-5


@dataclasses.dataclass
class Layer:
    attention_norm: np.ndarray  # [width]
    query: np.ndarray  # [heads * head_size, width]
    key: np.ndarray  # [kv_heads * head_size, width]
    value: np.ndarray  # [kv_heads * head_size, width]
    output: np.ndarray  # [width, heads * head_size]
    mlp_norm: np.ndarray  # [width]
    gate: np.ndarray  # [hidden, width]
    up: np.ndarray  # [hidden, width]
    down: np.ndarray  # [width, hidden]


class Model:
    """Weights and the forward pass. Deterministic: equal inputs of equal shapes give equal bits."""

    def __init__(self, shape, embedding, layers, norm):
        self.shape = shape
        self.embedding = embedding  # [vocabulary, width], also the output matrix
        self.layers = layers
        self.norm = norm

    def forward(self, tokens, cache, position):
        """Run `tokens`, the first of them at `position`; returns the logits after the last one.

        cache: a (keys, values) pair for each layer, each [max_tokens, kv_heads, head_size]. Rows
        before `position` are read, rows of the new tokens are written.
        """
        x = self.embedding[tokens]
        cos, sin = self._rotation(position, len(tokens))
        for layer, (keys, values) in zip(self.layers, cache):
            x = x + self._attention(
                layer, self._norm(x, layer.attention_norm), keys, values, position, cos, sin
            )
            x = x + self._mlp(layer, self._norm(x, layer.mlp_norm))
        return self._norm(x[-1:], self.norm)[0] @ self.embedding.T

    def _norm(self, x, weight):
        scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(self.shape.epsilon))
        return x / scale * weight

    def _rotation(self, position, count):
        """Cosines and sines of the rotary embedding, [count, 1, head_size / 2]."""
        half = self.shape.head_size // 2
        frequency = self.shape.rope_base ** (-np.arange(half, dtype=np.float64) / half)
        angle = np.arange(position, position + count, dtype=np.float64)[:, None] * frequency
        return np.cos(angle).astype(np.float32)[:, None], np.sin(angle).astype(np.float32)[:, None]

    @staticmethod
    def _rotate(x, cos, sin):
        """Rotate pairs (0, 1), (2, 3), ...: GGUF files store query and key rows in that order."""
        even, odd = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2] = even * cos - odd * sin
        out[..., 1::2] = even * sin + odd * cos
        return out

    def _attention(self, layer, x, keys, values, position, cos, sin):
        shape, count = self.shape, len(x)
        end = position + count
        query = self._rotate(
            (x @ layer.query.T).reshape(count, shape.heads, shape.head_size), cos, sin
        )
        key = (x @ layer.key.T).reshape(count, shape.kv_heads, shape.head_size)
        keys[position:end] = self._rotate(key, cos, sin)
        values[position:end] = (x @ layer.value.T).reshape(count, shape.kv_heads, shape.head_size)

        # Token i sees everything up to itself.
        hidden = np.arange(end)[None, :] > np.arange(position, end)[:, None]
        group = shape.heads // shape.kv_heads
        out = np.empty((count, shape.heads, shape.head_size), np.float32)
        for head in range(shape.heads):
            k, v = keys[:end, head // group], values[:end, head // group]
            score = query[:, head] @ k.T / np.float32(np.sqrt(shape.head_size))
            score[hidden] = -np.inf
            score = np.exp(score - score.max(axis=-1, keepdims=True))
            out[:, head] = (score / score.sum(axis=-1, keepdims=True)) @ v
        return out.reshape(count, -1) @ layer.output.T

    @staticmethod
    def _mlp(layer, x):
        gate = x @ layer.gate.T
        return (gate / (1 + np.exp(-gate)) * (x @ layer.up.T)) @ layer.down.T


def generate(model, cache, first, position, count, stop, on_token=lambda token: None):
    """Go on greedily from token `first`, which stands at `position`: up to `count` tokens, `first`
    included, ending before a token of `stop`."""
    tokens = []
    token = first
    while len(tokens) < count and token not in stop:
        tokens.append(token)
        on_token(token)
        if len(tokens) < count:
            token = int(np.argmax(model.forward([token], cache, position)))
            position += 1
    return tokens


def load_gguf(path):
    """Read and dequantise a Llama model in GGUF. Returns (Model, the reader's fields)."""
    import gguf

    reader = gguf.GGUFReader(path)

    def field(name):
        return reader.fields[name].contents()

    if field("general.architecture") != "llama":
        raise ValueError(f"its architecture is {field('general.architecture')!r}, wanted 'llama'")
    width, heads = field("llama.embedding_length"), field("llama.attention.head_count")
    shape = Shape(
        layers=field("llama.block_count"),
        width=width,
        hidden=field("llama.feed_forward_length"),
        heads=heads,
        kv_heads=field("llama.attention.head_count_kv"),
        head_size=width // heads,
        vocabulary=field("llama.vocab_size"),
        rope_base=field("llama.rope.freq_base"),
        epsilon=field("llama.attention.layer_norm_rms_epsilon"),
    )
    tensors = {
        t.name: np.ascontiguousarray(gguf.quants.dequantize(t.data, t.tensor_type), np.float32)
        for t in reader.tensors
    }
    if "output.weight" in tensors:
        raise ValueError("it has an output matrix of its own, wanted tied embeddings")
    parts = [
        "attn_norm",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_norm",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ]
    layers = [
        Layer(*(tensors[f"blk.{i}.{part}.weight"] for part in parts)) for i in range(shape.layers)
    ]
    return Model(
        shape, tensors["token_embd.weight"], layers, tensors["output_norm.weight"]
    ), reader.fields


def random_model(layers=Shape.layers, seed=1):
    """The same shape with seeded weights: every process makes the same one."""
    shape = Shape(layers=layers)
    source = np.random.default_rng(seed)

    def matrix(rows, columns):
        return source.standard_normal((rows, columns), np.float32) / np.float32(np.sqrt(columns))

    def ones():
        return np.ones(shape.width, np.float32)

    kv = shape.kv_heads * shape.head_size
    made = [
        Layer(ones(), matrix(shape.width, shape.width), matrix(kv, shape.width), matrix(kv, shape.width),
              matrix(shape.width, shape.width), ones(), matrix(shape.hidden, shape.width),
              matrix(shape.hidden, shape.width), matrix(shape.width, shape.hidden))
        for _ in range(layers)
    ]  # fmt: skip
    return Model(shape, matrix(shape.vocabulary, shape.width), made, ones())
