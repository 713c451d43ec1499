"""Text to tokens and back: byte-level BPE from the model file's own vocabulary and merges."""

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


class GgufTokenizer:
    """SmolLM2's tokenizer: digits one by one, bytes through GPT-2's alphabet."""

    def __init__(self, fields):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        kind = fields["tokenizer.ggml.pre"].contents()
        if kind != "smollm":
            raise ValueError(f"its tokenizer is {kind!r}, wanted 'smollm'")
        tokens = fields["tokenizer.ggml.tokens"].contents()
        merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
        vocabulary = {token: i for i, token in enumerate(tokens)}
        self._tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        self._tokenizer.decoder = decoders.ByteLevel()
        self._begin, self._end = vocabulary["<|im_start|>"], vocabulary["<|im_end|>"]
        self.stop = {self._end, vocabulary["<|endoftext|>"]}

    def encode_chat(self, prompt):
        """SmolLM2-Instruct's chat template. Control tokens are put in by number, so that text of
        the user that looks like one stays text."""
        between = self._encode("\n")
        return [
            *[self._begin, *self._encode(f"system\n{SYSTEM}"), self._end, *between],
            *[self._begin, *self._encode(f"user\n{prompt}"), self._end, *between],
            *[self._begin, *self._encode("assistant\n")],
        ]

    def _encode(self, text):
        return self._tokenizer.encode(text).ids

    def decode(self, tokens):
        return self._tokenizer.decode(tokens)


class ByteTokenizer:
    """One token a byte, for the random model; what it generates means nothing and is shown as numbers."""

    stop = frozenset()

    def encode_chat(self, prompt):
        return list(prompt.encode())

    def decode(self, tokens):
        return " ".join(str(token) for token in tokens)
