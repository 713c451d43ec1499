"""Pulls between two processes: exactly the right bytes, and what becomes of keys."""

import pytest
from test_rig import (
    DECODER_ID,
    PROMPT_ID,
    UINT64_MAX,
    Call,
    Peer,
    RemoteFailure,
    cluster,
    content,
    desc,
    fill,
    options,
    read,
    refused,
    wait_until,
)

from llm_datadist import (
    BlocksCacheKey,
    CacheKey,
    CacheKeyByIdAndIndex,
    DataType,
    LLMDataDist,
    LLMException,
    LLMRole,
    LLMStatusCode,
)

NOT_EXIST = "LLM_KV_CACHE_NOT_EXIST"
HOLE = (UINT64_MAX,)


@pytest.fixture
def prompt():
    with Peer() as peer:
        yield peer


@pytest.fixture
def decoder(prompt):
    """A decoder in this process, linked with the prompt."""
    dist = LLMDataDist(LLMRole.DECODER, DECODER_ID)
    dist.init(options(listen=None, **{"llm.SyncKvCacheWaitTime": "10000"}))
    found = dist.link_clusters([cluster(PROMPT_ID, prompt.address)])
    assert found == (LLMStatusCode.LLM_SUCCESS, [LLMStatusCode.LLM_SUCCESS])
    yield dist.kv_cache_manager
    dist.finalize()


def key(req_id, model_id=0, prefix_id=UINT64_MAX):
    return CacheKey(PROMPT_ID, req_id, model_id, prefix_id)


def wait_for_keys(prompt, count):
    """Wait until the owner holds so many keys: it hears of a complete pull a moment after it."""
    wait_until(lambda: prompt.ask("stats")["keys"] == count)


def source(seed, num_tensors, size):
    """The tensors that a peer filled with this seed, as bytearrays."""
    return [bytearray(content(seed, index, size)) for index in range(num_tensors)]


# ---- whole caches, and their keys --------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_tensors", "shape", "data_type"),
    [
        (1, [1, 1], DataType.DT_UINT8),
        (4, [3, 10], DataType.DT_FLOAT),
        (80, [1, 64, 8], DataType.DT_FLOAT16),
        (5, [1, 1000003], DataType.DT_UINT8),
        (8, [1, 1, 2, 256, 128], DataType.DT_BF16),
    ],
)
def test_every_byte_arrives(prompt, decoder, num_tensors, shape, data_type):
    prompt.ask("allocate", "a", num_tensors, shape, [(7,)], seed=1, data_type=data_type.name)
    cache = decoder.allocate_cache(desc(num_tensors, shape, data_type))
    fill(decoder, cache, 2)
    decoder.pull_cache(key(7), cache)
    size = cache.cache_desc.size
    stride = size // shape[0]
    for index, found in enumerate(read(decoder, cache)):
        assert found[:stride] == content(1, index, size)[:stride]
        assert found[stride:] == content(2, index, size)[stride:]  # other slices untouched


def test_a_pull_uses_up_a_request_key(prompt, decoder):
    prompt.ask("allocate", "a", 2, [2, 8], [(1,), (2,)], seed=1)
    prompt.ask("deallocate", "a")
    cache = decoder.allocate_cache(desc(2, [2, 8]))
    decoder.pull_cache(key(1), cache)
    with refused(LLMException, None, NOT_EXIST):
        decoder.pull_cache(key(1), cache)
    decoder.pull_cache(key(2), cache, 1)
    assert read(decoder, cache) == source(1, 2, 16)
    wait_for_keys(prompt, 0)
    stats = prompt.ask("stats")  # the last key went, and the cache with it
    assert (stats["caches"], stats["keys"], stats["pool_used_bytes"]) == (0, 0, 0)


def test_a_key_may_be_given_again_after_its_pull(prompt, decoder):
    cache = decoder.allocate_cache(desc(2, [1, 8]))
    for seed in (1, 2, 3):
        prompt.ask("allocate", f"cache {seed}", 2, [1, 8], [(7,)], seed=seed)
        decoder.pull_cache(key(7), cache)
        assert read(decoder, cache) == source(seed, 2, 8)
        wait_for_keys(prompt, 0)


def test_a_prefix_key_stays(prompt, decoder):
    prompt.ask("allocate", "a", 2, [1, 8], [(UINT64_MAX, 0, 5)], seed=1)
    prompt.ask("deallocate", "a")
    cache = decoder.allocate_cache(desc(2, [1, 8]))
    for _ in range(3):
        fill(decoder, cache, 9)
        decoder.pull_cache(key(UINT64_MAX, 0, 5), cache)
        assert read(decoder, cache) == source(1, 2, 8)
    with refused(LLMException, None, NOT_EXIST):
        decoder.pull_cache(key(5), cache)  # another name space
    with refused(LLMException, None, NOT_EXIST):
        decoder.pull_cache(key(UINT64_MAX, 1, 5), cache)
    prompt.ask("remove_key", UINT64_MAX, 0, 5)
    with refused(LLMException, None, NOT_EXIST):
        decoder.pull_cache(key(UINT64_MAX, 0, 5), cache)


def test_placeholders_keep_the_other_keys_at_their_slices(prompt, decoder):
    prompt.ask("allocate", "a", 2, [4, 8], [HOLE, (1,), HOLE, (3,)], seed=1)
    cache = decoder.allocate_cache(desc(2, [4, 8]))
    fill(decoder, cache, 2)
    decoder.pull_cache(key(3), cache, 0)
    decoder.pull_cache(key(1), cache, 2)
    for index, found in enumerate(read(decoder, cache)):
        theirs, ours = content(1, index, 32), content(2, index, 32)
        assert found == theirs[24:32] + ours[8:16] + theirs[8:16] + ours[24:32]


def test_the_last_of_equal_keys_wins(prompt, decoder):
    prompt.ask("allocate", "a", 2, [3, 8], [(1,), HOLE, (1,)], seed=1)
    cache = decoder.allocate_cache(desc(2, [1, 8]))
    decoder.pull_cache(key(1), cache)
    assert read(decoder, cache) == [content(1, index, 24)[16:] for index in range(2)]


def test_model_ids_tell_keys_apart(prompt, decoder):
    for model_id in (0, 1, UINT64_MAX):
        keys = [(7, model_id)]
        prompt.ask("allocate", f"model {model_id}", 2, [1, 8], keys, seed=model_id)
    cache = decoder.allocate_cache(desc(2, [1, 8]))
    for model_id in (1, UINT64_MAX, 0):
        decoder.pull_cache(key(7, model_id), cache)
        assert read(decoder, cache) == source(model_id, 2, 8)


def test_a_removed_key_is_unknown(prompt, decoder):
    prompt.ask("allocate", "a", 2, [1, 8], [(1,)], seed=1)
    prompt.ask("remove_key", 1)
    cache = decoder.allocate_cache(desc(2, [1, 8]))
    with refused(LLMException, None, NOT_EXIST):
        decoder.pull_cache(key(1), cache)


# ---- by id -------------------------------------------------------------------------------------


def test_pull_by_id_and_index(prompt, decoder):
    cache_id = prompt.ask("allocate", "a", 2, [3, 8], [HOLE, (1,)], seed=1)
    cache = decoder.allocate_cache(desc(2, [1, 8]))
    for batch in (0, 2, 0):  # no key there: nothing is used up
        decoder.pull_cache(CacheKeyByIdAndIndex(PROMPT_ID, cache_id, batch), cache)
        assert read(decoder, cache) == [
            content(1, index, 24)[8 * batch :][:8] for index in range(2)
        ]
    decoder.pull_cache(CacheKeyByIdAndIndex(PROMPT_ID, cache_id, 1), cache)
    with refused(LLMException, None, NOT_EXIST):
        decoder.pull_cache(key(1), cache)
    for bad_id, batch in ((cache_id, 3), (cache_id + 1, 0), (0, 0), (-1, 0)):
        with refused(LLMException, None, NOT_EXIST):
            decoder.pull_cache(CacheKeyByIdAndIndex(PROMPT_ID, bad_id, batch), cache)


def test_id_of_a_deallocated_cache_reaches_slices_with_keys(prompt, decoder):
    cache_id = prompt.ask("allocate", "a", 2, [2, 8], [(1,)], seed=1)
    prompt.ask("deallocate", "a")
    cache = decoder.allocate_cache(desc(2, [1, 8]))
    with refused(LLMException, None, NOT_EXIST):
        decoder.pull_cache(CacheKeyByIdAndIndex(PROMPT_ID, cache_id, 1), cache)
    decoder.pull_cache(CacheKeyByIdAndIndex(PROMPT_ID, cache_id, 0), cache)
    assert read(decoder, cache) == [content(1, index, 16)[:8] for index in range(2)]
    with refused(LLMException, None, NOT_EXIST):
        decoder.pull_cache(CacheKeyByIdAndIndex(PROMPT_ID, cache_id, 0), cache)


# ---- sizes and offsets -------------------------------------------------------------------------

# (size, src_cache_offset, dst_cache_offset): slices of 16 bytes at the source, 12 here
GOOD_PARTS = [
    (-1, None, None),
    (12, None, None),
    (1, None, None),
    (5, None, None),
    (-1, 0, None),
    (-1, 4, 0),
    (-1, None, 3),
    (4, 12, 8),
    (1, 15, 11),
    (-1, 7, 11),
]
BAD_PARTS = [
    (13, None, None),
    (-1, 5, None),
    (4, 13, 0),
    (4, 0, 9),
    (-1, 0, 12),
    (1, 16, 0),
    (1, 2**63 - 1, 0),
    (2**63 - 1, 0, 0),
]


def pull_part(decoder, cache, size, src_offset, dst_offset):
    offsets = {"src_cache_offset": src_offset, "dst_cache_offset": dst_offset}
    given = {name: value for name, value in offsets.items() if value is not None}
    decoder.pull_cache(key(1), cache, 1, size, **given)


@pytest.mark.parametrize(("size", "src_offset", "dst_offset"), GOOD_PARTS)
def test_part_of_a_slice(prompt, decoder, size, src_offset, dst_offset):
    prompt.ask("allocate", "a", 2, [2, 16], [HOLE, (1,)], seed=1)
    cache = decoder.allocate_cache(desc(2, [3, 12], seq_len_dim_index=-1))
    fill(decoder, cache, 2)
    pull_part(decoder, cache, size, src_offset, dst_offset)
    first, at = src_offset or 0, 12 + (dst_offset or 0)
    count = 12 - (dst_offset or 0) if size == -1 else size
    for index, found in enumerate(read(decoder, cache)):
        wanted = bytearray(content(2, index, 36))
        wanted[at : at + count] = content(1, index, 32)[16 + first :][:count]
        assert found == wanted
    is_kept = src_offset is not None or dst_offset is not None
    if is_kept:
        pull_part(decoder, cache, size, src_offset, dst_offset)
    else:
        with refused(LLMException, None, NOT_EXIST):
            pull_part(decoder, cache, size, src_offset, dst_offset)


@pytest.mark.parametrize(("size", "src_offset", "dst_offset"), BAD_PARTS)
def test_part_outside_a_slice_is_refused(prompt, decoder, size, src_offset, dst_offset):
    prompt.ask("allocate", "a", 2, [2, 16], [HOLE, (1,)], seed=1)
    cache = decoder.allocate_cache(desc(2, [3, 12]))
    fill(decoder, cache, 2)
    with refused(LLMException):
        pull_part(decoder, cache, size, src_offset, dst_offset)
    assert read(decoder, cache) == source(2, 2, 36)
    pull_part(decoder, cache, 1, 0, 0)  # key and link are well


def test_a_larger_destination_slice_is_refused(prompt, decoder):
    prompt.ask("allocate", "a", 2, [1, 8], [(1,)], seed=1)
    cache = decoder.allocate_cache(desc(2, [1, 9]))
    with refused(LLMException, "8"):
        decoder.pull_cache(key(1), cache)
    decoder.pull_cache(key(1), cache, 0, 8)


def test_types_and_shapes_are_not_compared(prompt, decoder):
    prompt.ask("allocate", "a", 2, [2, 4], [HOLE, (1,)], seed=1, data_type="DT_FLOAT16")
    cache = decoder.allocate_cache(desc(2, [1, 2, 2, 2]))
    decoder.pull_cache(key(1), cache)
    assert read(decoder, cache) == [content(1, index, 16)[8:] for index in range(2)]


# ---- layers ------------------------------------------------------------------------------------

LAYER_BYTES = 8


def layered(num_layers, per_layer, seed):
    return source(seed, num_layers * per_layer, LAYER_BYTES)


@pytest.mark.parametrize(
    ("src_layers", "dst_layers", "src", "dst", "per_layer"),
    [
        (8, 16, range(0, 8), range(8, 16), None),
        (8, 16, None, range(8, 16), None),
        (16, 8, range(3, 11), None, None),
        (8, 8, range(2, 5), range(5, 8), 2),
        (8, 8, range(7, 8), range(0, 1), 1),
        (4, 4, range(1, 3), range(2, 4), 4),
        (5, 5, range(0, 5), range(0, 5), 1),
        (8, 8, range(0), range(4, 1), None),
        (7, 3, range(4, 7), range(0, 3), 3),
    ],
)
def test_exactly_the_given_layers_change(
    prompt, decoder, src_layers, dst_layers, src, dst, per_layer
):
    n = per_layer or 2
    prompt.ask("allocate", "a", src_layers * n, [1, LAYER_BYTES], [(1,)], seed=1)
    cache = decoder.allocate_cache(desc(dst_layers * n, [1, LAYER_BYTES]))
    fill(decoder, cache, 2)
    given = {"src_layer_range": src, "dst_layer_range": dst}
    if per_layer is not None:
        given["tensor_num_per_layer"] = per_layer
    decoder.pull_cache(key(1), cache, **given)
    wanted, theirs = layered(dst_layers, n, 2), layered(src_layers, n, 1)
    for one, other in zip(src or range(src_layers), dst or range(dst_layers)):
        wanted[other * n : (other + 1) * n] = theirs[one * n : (one + 1) * n]
    assert read(decoder, cache) == wanted


@pytest.mark.parametrize(
    "given",
    [
        {"src_layer_range": range(0, 2), "dst_layer_range": range(0, 3)},
        {"src_layer_range": range(0, 3)},
        {"dst_layer_range": range(0, 3)},
        {"src_layer_range": range(6, 9), "dst_layer_range": range(0, 3)},
        {"src_layer_range": range(0, 3), "dst_layer_range": range(6, 9)},
        {"src_layer_range": range(0, 4, 2), "dst_layer_range": range(0, 4, 2)},
        {"src_layer_range": range(0, 3), "dst_layer_range": range(0, 3), "tensor_num_per_layer": 3},
        {"src_layer_range": range(2**32 - 2, 2**32 - 1), "dst_layer_range": range(1)},
        {"tensor_num_per_layer": 17},
    ],
)
def test_bad_layers_are_refused_and_nothing_is_written(prompt, decoder, given):
    prompt.ask("allocate", "a", 16, [1, LAYER_BYTES], [(1,)], seed=1)
    cache = decoder.allocate_cache(desc(16, [1, LAYER_BYTES]))
    fill(decoder, cache, 2)
    with refused(LLMException):
        decoder.pull_cache(key(1), cache, **given)
    assert read(decoder, cache) == layered(8, 2, 2)
    decoder.pull_cache(key(1), cache)
    assert read(decoder, cache) == layered(8, 2, 1)


@pytest.mark.parametrize(("src_count", "dst_count"), [(4, 2), (2, 4)])
def test_unequal_numbers_of_tensors_are_refused(prompt, decoder, src_count, dst_count):
    prompt.ask("allocate", "a", src_count, [1, 8], [(1,)], seed=1)
    cache = decoder.allocate_cache(desc(dst_count, [1, 8]))
    with refused(LLMException):
        decoder.pull_cache(key(1), cache)


def test_a_key_goes_when_every_layer_was_pulled(prompt, decoder):
    prompt.ask("allocate", "a", 8, [1, 8], [(1,)], seed=1)
    cache = decoder.allocate_cache(desc(8, [1, 8]))

    def pull(layers):
        decoder.pull_cache(key(1), cache, src_layer_range=layers, dst_layer_range=layers)

    for layers in (range(0, 2), range(0, 2), range(3, 4), range(2, 3)):
        assert prompt.ask("stats")["keys"] == 1
        pull(layers)
    assert read(decoder, cache) == source(1, 8, 8)
    with refused(LLMException, None, NOT_EXIST):
        pull(range(0, 2))
    prompt.ask("allocate", "b", 8, [1, 8], [(1,)], seed=2)
    pull(range(0, 4))
    with refused(LLMException, None, NOT_EXIST):
        pull(range(0, 4))


# ---- blocks ------------------------------------------------------------------------------------

COUNT, BLOCK = 12, 16


@pytest.fixture
def blocks(prompt, decoder):
    """A destination; the source has 12 blocks of 16 bytes in 4 tensors, under model id 3."""
    prompt.ask("allocate_blocks", "a", 4, [COUNT, BLOCK], 3, seed=1)
    cache = decoder.allocate_blocks_cache(desc(4, [COUNT, BLOCK]))
    fill(decoder, cache, 2)
    return cache


SOURCE = BlocksCacheKey(PROMPT_ID, 3)


def expected(pairs, tensors=range(4), src_tensors=range(4)):
    wanted = source(2, 4, COUNT * BLOCK)
    theirs = source(1, 4, COUNT * BLOCK)
    for tensor, src_tensor in zip(tensors, src_tensors):
        for src, dst in pairs:
            wanted[tensor][dst * BLOCK : (dst + 1) * BLOCK] = theirs[src_tensor][
                src * BLOCK : (src + 1) * BLOCK
            ]
    return wanted


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ([0], [0]),
        ([11], [0]),
        ([3, 1, 7], [2, 9, 0]),
        (list(range(COUNT)), list(range(COUNT))),
        (list(range(COUNT)), list(reversed(range(COUNT)))),
        ([5, 5, 5], [1, 2, 3]),
        ([1, 2, 3], [4, 4, 4]),
        ([1, 2, 3, 4], [6, 7, 6, 7]),
        ([True], [False]),
        ([2] * 1000, [5] * 1000),
    ],
)
def test_blocks_go_where_they_are_told(decoder, blocks, src, dst):
    for _ in range(2):  # a blocks key stays
        decoder.pull_blocks(SOURCE, blocks, src, dst)
        assert read(decoder, blocks) == expected(list(zip(src, dst)))


@pytest.mark.parametrize(
    ("src", "dst", "per_layer"),
    [
        (range(1, 2), range(0, 1), None),
        (range(2, 4), range(0, 2), 1),
        (range(0, 4), range(0, 4), 1),
        (range(0, 1), range(0, 1), 4),
    ],
)
def test_blocks_of_some_layers(decoder, blocks, src, dst, per_layer):
    n = per_layer or 2
    given = {} if per_layer is None else {"tensor_num_per_layer": per_layer}
    decoder.pull_blocks(SOURCE, blocks, [1], [2], src_layer_range=src, dst_layer_range=dst, **given)

    def tensors(layers):
        return range(layers.start * n, layers.stop * n)

    assert read(decoder, blocks) == expected([(1, 2)], tensors(dst), tensors(src))


@pytest.mark.parametrize(
    ("src", "dst", "error", "text"),
    [
        ([COUNT], [0], LLMException, "12"),
        ([0], [COUNT], LLMException, "12"),
        ([0, 1, COUNT], [0, 1, 2], LLMException, "12"),
        ([0, 1], [0, COUNT], LLMException, "12"),
        ([2**64 - 1], [0], LLMException, None),
        ([0], [2**64 - 1], LLMException, None),
        ([-1], [0], ValueError, "prompt_blocks"),
        ([0], [-1], ValueError, "decoder_blocks"),
        ([0, 1], [0], LLMException, "2 entries"),
        ([], [], LLMException, "at least one"),
    ],
)
def test_bad_blocks_are_refused_and_nothing_is_written(decoder, blocks, src, dst, error, text):
    with refused(error, text):
        decoder.pull_blocks(SOURCE, blocks, src, dst)
    assert read(decoder, blocks) == expected([])
    decoder.pull_blocks(SOURCE, blocks, [0], [0])


def test_blocks_of_unequal_size_are_refused_with_both_sizes(decoder, blocks):
    cache = decoder.allocate_blocks_cache(desc(4, [COUNT, 2 * BLOCK]))
    fill(decoder, cache, 2)
    with refused(LLMException, "16.*32|32.*16"):
        decoder.pull_blocks(SOURCE, cache, [0], [0])
    assert read(decoder, cache) == source(2, 4, 2 * COUNT * BLOCK)


def test_unknown_blocks_key(prompt, decoder, blocks):
    with refused(LLMException, None, NOT_EXIST):
        decoder.pull_blocks(BlocksCacheKey(PROMPT_ID, 4), blocks, [0], [0])
    prompt.ask("deallocate", "a")
    with refused(LLMException, None, NOT_EXIST):
        decoder.pull_blocks(SOURCE, blocks, [0], [0])


def test_any_device_cache_takes_blocks(decoder, blocks):
    cache = decoder.allocate_cache(desc(4, [COUNT, BLOCK]))
    fill(decoder, cache, 2)
    decoder.pull_blocks(SOURCE, cache, [1], [2])
    assert read(decoder, cache) == expected([(1, 2)])


def test_many_blocks(prompt, decoder):
    count = 10000
    prompt.ask("allocate_blocks", "big", 2, [count, 4], 9, seed=1)
    cache = decoder.allocate_blocks_cache(desc(2, [count, 4]))
    dst = [(7 * at + 3) % count for at in range(count)]
    decoder.pull_blocks(BlocksCacheKey(PROMPT_ID, 9), cache, list(range(count)), dst)
    for index, found in enumerate(read(decoder, cache)):
        theirs = content(1, index, 4 * count)
        assert all(found[4 * dst[at] :][:4] == theirs[4 * at :][:4] for at in range(0, count, 17))


# ---- several at once ---------------------------------------------------------------------------


def test_pulls_of_many_threads(prompt, decoder):
    size = 1 << 18
    for at in range(16):
        prompt.ask("allocate", f"a{at}", 4, [1, size], [(at,)], seed=at)
    caches = [decoder.allocate_cache(desc(4, [1, size])) for _ in range(16)]
    calls = [Call(decoder.pull_cache, key(at), cache) for at, cache in enumerate(caches)]
    for at, call in enumerate(calls):
        call.result()
        assert read(decoder, caches[at]) == source(at, 4, size)
    wait_for_keys(prompt, 0)


def test_a_link_check_beside_pulls_says_busy_or_nothing(prompt, decoder):
    size = 1 << 24
    prompt.ask("allocate", "a", 4, [1, size], [(UINT64_MAX, 0, 1)], seed=1)
    cache = decoder.allocate_cache(desc(4, [1, size]))
    dist = LLMDataDist.llm_engine_instance

    def pull_often():
        for _ in range(8):
            fill_first = memoryview(decoder.get_cache_tensors(cache)[0]).cast("B")
            fill_first[:8] = bytes(8)
            decoder.pull_cache(key(UINT64_MAX, 0, 1), cache)
            assert bytes(fill_first[:8]) == content(1, 0, size)[:8]

    pulling = Call(pull_often)
    outcomes = set()
    for _ in range(1000):
        try:
            dist.check_link_status(PROMPT_ID)
            outcomes.add("LLM_SUCCESS")
        except LLMException as error:
            outcomes.add(error.status_code.name)
    pulling.result()
    assert outcomes <= {"LLM_SUCCESS", "LLM_LINK_BUSY"}
    assert "LLM_LINK_BUSY" in outcomes
    dist.check_link_status(PROMPT_ID)
    assert read(decoder, cache) == source(1, 4, size)


def test_two_prompts_at_once(prompt, decoder):
    with Peer(cluster_id=5) as other:
        dist = LLMDataDist.llm_engine_instance
        dist.link_clusters([cluster(5, other.address)])
        prompt.ask("allocate", "a", 2, [1, 8], [(1,)], seed=1)
        other.ask("allocate", "a", 2, [1, 8], [(1,)], seed=5)
        cache = decoder.allocate_cache(desc(2, [2, 8]))
        decoder.pull_cache(CacheKey(5, 1), cache, 1)
        decoder.pull_cache(key(1), cache, 0)
        for index, found in enumerate(read(decoder, cache)):
            assert found == content(1, index, 8) + content(5, index, 8)


def test_the_peers_failures_are_its_own(prompt, decoder):
    with pytest.raises(RemoteFailure) as caught:
        prompt.ask("pull", (1, 1), "a")
    assert caught.value.kind in ("KeyError", "LLMException")
    assert decoder.is_initialized()
