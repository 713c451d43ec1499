"""The decode process: pulls the prompt's keys and values, and goes on generating from there."""

import sys

import worker

import model as models
from llm_datadist import CacheKey, LLMClusterInfo, LLMDataDist, LLMRole, LLMStatusCode


def link(dist, address):
    host, port = address.rsplit(":", 1)
    peer = LLMClusterInfo()
    peer.remote_cluster_id = worker.PROMPT_CLUSTER
    peer.append_local_ip_info("127.0.0.1", 0)
    peer.append_remote_ip_info(host, int(port))
    status, each = dist.link_clusters([peer], timeout=5000)
    if status != LLMStatusCode.LLM_SUCCESS:
        raise RuntimeError(f"cannot link with {address}: {status}, {each}")


def main():
    start = worker.listen()
    model, tokenizer = worker.load(start["model"], start["layers"])
    dist = LLMDataDist(LLMRole.DECODER, worker.DECODE_CLUSTER)
    dist.init(worker.engine_options())
    manager = dist.kv_cache_manager
    worker.tell("loaded")

    order = worker.listen()
    prompt_tokens = order["prompt_tokens"]
    link(dist, order["address"])
    shape = model.shape
    cache = manager.allocate_cache(worker.describe(shape, prompt_tokens + start["tokens"]))
    bytes_per_tensor = prompt_tokens * shape.kv_heads * shape.head_size * 4
    with worker.Timer() as pull:
        manager.pull_cache(
            CacheKey(worker.PROMPT_CLUSTER, req_id=worker.REQUEST), cache, size=bytes_per_tensor
        )
    worker.tell("pulled", bytes=2 * shape.layers * bytes_per_tensor, seconds=pull.seconds)

    with worker.Timer() as timer:
        tokens = models.generate(
            model,
            worker.arrays(manager, cache),
            order["first"],
            prompt_tokens,
            start["tokens"],
            tokenizer.stop,
            lambda token: worker.tell("token", token=token),
        )
    worker.tell("done", tokens=tokens, text=tokenizer.decode(tokens), seconds=timer.seconds)
    worker.listen()
    dist.finalize()


if __name__ == "__main__":
    sys.exit(main())
