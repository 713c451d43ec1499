"""Text to tokens and back: byte-level BPE from the model file's own vocabulary and merges."""

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


class GgufTokenizer:
    """SmolLM2's tokenizer: digits one by one, bytes through GPT-2's alphabet, control tokens whole."""

    CONTROL = 3  # tokenizer.ggml.token_type of control tokens

    def __init__(self, fields):
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        tokens = fields["tokenizer.ggml.tokens"].contents()
        types = fields["tokenizer.ggml.token_type"].contents()
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
        self._tokenizer.add_special_tokens(
            [AddedToken(t, special=True) for t, kind in zip(tokens, types) if kind == self.CONTROL]
        )
        self.stop = {vocabulary["<|im_end|>"], vocabulary["<|endoftext|>"]}

    def encode_chat(self, prompt):
        text = (
            f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
            f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
        )
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
