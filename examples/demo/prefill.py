"""The prefill process: runs the prompt, writes keys and values into datadist memory, serves it."""

import sys

import numpy as np
import worker

from llm_datadist import CacheKey, LLMDataDist, LLMRole


def main():
    start = worker.listen()
    model, tokenizer = worker.load(start["model"], start["layers"])
    prompt = tokenizer.encode_chat(start["prompt"])

    dist = LLMDataDist(LLMRole.PROMPT, worker.PROMPT_CLUSTER)
    dist.init(worker.engine_options("127.0.0.1:0"))
    manager = dist.kv_cache_manager
    key = CacheKey(worker.PROMPT_CLUSTER, req_id=worker.REQUEST)
    cache = manager.allocate_cache(worker.describe(model.shape, len(prompt)), [key])
    kv = worker.arrays(manager, cache)
    with worker.Timer() as timer:
        first = int(np.argmax(model.forward(prompt, kv, 0)))
    del kv
    manager.deallocate_cache(cache)  # from here the key keeps it, until decode has pulled
    worker.tell(
        "ready",
        address=dist.listen_address,
        first=first,
        prompt_tokens=len(prompt),
        seconds=timer.seconds,
    )
    worker.listen()  # demo.py says when decode is through
    dist.finalize()


if __name__ == "__main__":
    sys.exit(main())
