"""What the prefill and the decode process share: the model, the cache, and how they talk to demo.py.

They get commands as JSON lines on standard input and answer with JSON lines on standard output. Only
small things go that way; the KV cache goes through datadist.
"""

import json
import sys
import time

import numpy as np
import tokenizer as tokenizers

import model as models

try:
    from llm_datadist import CacheDesc, DataType, LLMConfig
except ImportError as error:
    sys.exit(f"{error}; start it with `./dev demo`, or put build/release/python into PYTHONPATH")

PROMPT_CLUSTER, DECODE_CLUSTER = 1, 2
REQUEST = 1
TIMEOUT_MS = 30000


def tell(event, **facts):
    print(json.dumps({"event": event, **facts}), flush=True)


def listen():
    """The next command; ends the process quietly when demo.py is gone."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def load(name, layers):
    """(Model, tokenizer) for --model NAME."""
    if name == "random":
        return models.random_model(layers), tokenizers.ByteTokenizer()
    try:
        model, fields = models.load_gguf(name)
        return model, tokenizers.GgufTokenizer(fields)
    except (
        Exception
    ) as error:  # a file from outside is wrong in many ways; one line says which file
        raise SystemExit(f"cannot use {name}: {error!r}") from None


def engine_options(listen_at=""):
    config = LLMConfig()
    config.device_id = 0
    config.sync_kv_timeout = TIMEOUT_MS
    config.listen_ip_info = listen_at
    return config.generate_options()


def describe(shape, max_tokens):
    """One key and one value tensor a layer, [batch 1, tokens, heads, head size]."""
    dims = [1, max_tokens, shape.kv_heads, shape.head_size]
    return CacheDesc(2 * shape.layers, dims, DataType.DT_FLOAT)


def arrays(manager, cache):
    """The cache's memory as (keys, values) of each layer, [tokens, heads, head size]. No copy."""
    count = cache.cache_desc.num_tensors
    tensors = [
        np.asarray(memoryview(manager.get_cache_tensors(cache, i)[0]))[0] for i in range(count)
    ]
    return list(zip(tensors[0::2], tensors[1::2]))


class Timer:
    def __enter__(self):
        self.begin = time.perf_counter()
        return self

    def __exit__(self, *unused):
        self.seconds = time.perf_counter() - self.begin
