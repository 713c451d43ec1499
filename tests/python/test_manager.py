"""KvCacheManager in one process: argument checks in their order, life of caches and keys."""

import gc

import pytest
from test_rig import UINT64_MAX, desc, options, refused

from llm_datadist import (
    BlocksCacheKey,
    CacheDesc,
    CacheKey,
    CacheKeyByIdAndIndex,
    DataType,
    KvCache,
    LLMDataDist,
    LLMException,
    LLMRole,
    Placement,
)

PROMPT, DECODER, MIX = LLMRole.PROMPT, LLMRole.DECODER, LLMRole.MIX
NOT_EXIST = "LLM_KV_CACHE_NOT_EXIST"
NOT_LINKED = "LLM_NOT_YET_LINK"
KEY = CacheKey(1, 1)
BLOCKS_KEY = BlocksCacheKey(1, 1)


@pytest.fixture
def manager_of():
    """Start an instance of a role and return its manager."""
    dists = []

    def start(role):
        dist = LLMDataDist(role, 9)
        dist.init(options("127.0.0.1:0" if role is PROMPT else None))
        dists.append(dist)
        return dist.kv_cache_manager

    yield start
    for dist in dists:
        dist.finalize()


@pytest.fixture
def prompt(manager_of):
    return manager_of(PROMPT)


@pytest.fixture
def decoder(manager_of):
    return manager_of(DECODER)


def stats(manager):
    return manager._engine.call("stats", "stats")


def held(manager):
    return {name: stats(manager)[name] for name in ("caches", "keys", "pool_used_bytes")}


def host_desc():
    return desc(1, [2, 8], placement=Placement.HOST)


def cpu_cache():
    return KvCache.create_cpu_cache(host_desc(), [1])


# ---- allocate_cache ----------------------------------------------------------------------------


@pytest.mark.parametrize("role", list(LLMRole))
def test_ids_count_from_one_and_memory_is_aligned_and_zero(manager_of, role):
    manager = manager_of(role)
    shape = (4, 1000)
    kept = []
    for wanted in (1, 2, 3):
        cache = manager.allocate_cache(desc(3, shape))
        assert cache.cache_id == wanted
        (addrs,) = cache.per_device_tensor_addrs
        assert len(addrs) == 3
        assert all(type(addr) is int and addr % 512 == 0 for addr in addrs)
        assert cache.cache_desc.shape is shape
        assert str(cache) == f"KvCache(cache_id = {wanted}, num_devices = 1)"
        for index in range(3):
            assert not any(memoryview(manager.get_cache_tensors(cache, index)[0]).cast("B"))
        kept.append(cache)


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        (("desc",), TypeError, "cache_desc only support"),
        ((None,), AttributeError, None),
        ((desc(1, [1]), None), TypeError, "cache_keys only support"),
        ((desc(1, [1]), KEY), TypeError, "cache_keys only support"),
        ((desc(1, [1]), [1]), TypeError, "cache_keys inner type only support"),
        ((desc(1, [1]), [BLOCKS_KEY]), TypeError, "cache_keys inner type only support"),
        ((desc(0, [1]), [1]), TypeError, "inner type"),
        ((desc(0, [1]),), LLMException, "num_tensors"),
        ((host_desc(),), LLMException, "placement"),
        ((desc(1, [0]),), LLMException, None),
        ((desc(1, [1, -1]),), LLMException, None),
        ((desc(1, [1] * 32),), LLMException, None),
        ((desc(1, [2]), [KEY] * 3), LLMException, None),
    ],
)
def test_bad_allocations_are_refused(prompt, args, error, text):
    with refused(error, text):
        prompt.allocate_cache(*args)
    assert stats(prompt)["caches"] == 0


def test_31_dimensions_are_allowed(prompt):
    cache = prompt.allocate_cache(desc(1, [1] * 31))
    assert memoryview(prompt.get_cache_tensors(cache)[0]).ndim == 31


@pytest.mark.parametrize("role", [DECODER, MIX])
def test_only_a_prompt_gives_keys(manager_of, role):
    manager = manager_of(role)
    with refused(LLMException, str(role)):
        manager.allocate_cache(desc(1, [1]), [KEY])
    manager.allocate_cache(desc(1, [1]), [])
    manager.allocate_cache(desc(1, [1]), ())


def test_impossible_size_is_out_of_memory(prompt):
    with refused(LLMException, None, "LLM_DEVICE_OUT_OF_MEMORY"):
        prompt.allocate_cache(desc(4, [2**45]))
    with refused(LLMException):
        prompt.allocate_cache(desc(1, [2**62, 2**62]))


# ---- keys --------------------------------------------------------------------------------------


def test_a_key_names_one_live_cache(prompt):
    first = prompt.allocate_cache(desc(1, [2, 8]), [CacheKey(1, 5, 0)])
    before = held(prompt)
    for key in (CacheKey(1, 5), CacheKey(77, 5)):  # the cluster is not part of the identity
        with refused(LLMException, None, "LLM_FAILED"):
            prompt.allocate_cache(desc(1, [2, 8]), [CacheKey(1, 6), key])
    assert held(prompt) == before
    others = [
        prompt.allocate_cache(desc(1, [2, 8]), [CacheKey(1, 5, 1)]),
        prompt.allocate_cache(desc(1, [2, 8]), [CacheKey(1, UINT64_MAX, 0, 5)]),
        prompt.allocate_cache(desc(1, [2, 8]), [CacheKey(1, 5, 1, 6)]),  # by its prefix
        prompt.allocate_blocks_cache(desc(1, [2, 8]), BlocksCacheKey(1, 5)),
    ]
    assert stats(prompt)["keys"] == 5
    prompt.remove_cache_key(CacheKey(1, 5))
    others.append(prompt.allocate_cache(desc(1, [2, 8]), [CacheKey(1, 5)]))
    assert first.cache_id == 1 and len(others) == 5


def test_placeholders_name_nothing_and_repeat(prompt):
    hole = CacheKey(1, UINT64_MAX)
    cache = prompt.allocate_cache(desc(1, [4, 8]), [hole, CacheKey(1, 1), hole, hole])
    assert stats(prompt)["keys"] == 1
    prompt.remove_cache_key(hole)
    prompt.deallocate_cache(cache)
    assert stats(prompt)["caches"] == 1
    prompt.remove_cache_key(CacheKey(1, 1))
    assert stats(prompt)["caches"] == 0


def test_a_key_that_comes_twice_counts_once(prompt):
    cache = prompt.allocate_cache(desc(1, [2, 8]), [CacheKey(1, 1), CacheKey(1, 1)])
    assert stats(prompt)["keys"] == 1
    prompt.deallocate_cache(cache)
    prompt.remove_cache_key(CacheKey(1, 1))
    assert stats(prompt)["caches"] == 0


def test_a_cache_lives_by_its_id_and_its_keys(prompt):
    keys = [CacheKey(1, 1), CacheKey(1, UINT64_MAX, 0, 2)]
    cache = prompt.allocate_cache(desc(2, [2, 8]), keys)
    prompt.deallocate_cache(cache)
    assert cache.per_device_tensor_addrs == []
    assert (cache.cache_id, cache.cache_desc.num_tensors) == (1, 2)
    with refused(LLMException, None, NOT_EXIST):
        prompt.get_cache_tensors(cache)
    assert (stats(prompt)["caches"], stats(prompt)["pool_used_bytes"] > 0) == (1, True)
    prompt.remove_cache_key(keys[0])
    assert stats(prompt)["caches"] == 1
    prompt.remove_cache_key(keys[1])
    assert (stats(prompt)["caches"], stats(prompt)["pool_used_bytes"]) == (0, 0)


def test_keys_do_not_end_with_an_early_removal(prompt):
    cache = prompt.allocate_cache(desc(1, [1, 8]), [KEY])
    prompt.remove_cache_key(KEY)
    prompt.remove_cache_key(KEY)
    assert memoryview(prompt.get_cache_tensors(cache)[0]).nbytes == 8


@pytest.mark.parametrize(
    ("role", "key", "error"),
    [
        (DECODER, KEY, LLMException),
        (MIX, "x", LLMException),
        (PROMPT, "x", TypeError),
        (PROMPT, BLOCKS_KEY, TypeError),
        (PROMPT, CacheKeyByIdAndIndex(1, 1), TypeError),
        (PROMPT, None, AttributeError),
    ],
)
def test_bad_removal_is_refused(manager_of, role, key, error):
    with refused(error):
        manager_of(role).remove_cache_key(key)


# ---- allocate_blocks_cache ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "args", "error", "text"),
    [
        (PROMPT, ("desc",), TypeError, "only support"),
        (PROMPT, (None,), AttributeError, None),
        (PROMPT, (desc(1, [1]), KEY), TypeError, "blocks_cache_key only support"),
        (PROMPT, (desc(0, [1]), BLOCKS_KEY), LLMException, "num_tensors"),
        (PROMPT, (host_desc(), BLOCKS_KEY), LLMException, "placement"),
        (PROMPT, (desc(1, [1]), BlocksCacheKey(1, -1)), ValueError, "model_id is out of range"),
        (PROMPT, (desc(1, [1]), BlocksCacheKey(2**64)), ValueError, "cluster_id is out of range"),
        (DECODER, (desc(1, [1]), BLOCKS_KEY), LLMException, "DECODER"),
    ],
)
def test_bad_blocks_allocation_is_refused(manager_of, role, args, error, text):
    with refused(error, text):
        manager_of(role).allocate_blocks_cache(*args)


def test_roles_and_blocks_keys(manager_of):
    decoder = manager_of(DECODER)
    decoder.allocate_blocks_cache(desc(1, [4, 8]))
    decoder.allocate_blocks_cache(desc(1, [4, 8]), None)
    LLMDataDist.llm_engine_instance.finalize()
    mix = manager_of(MIX)
    cache = mix.allocate_blocks_cache(desc(1, [4, 8]), BLOCKS_KEY)
    assert stats(mix)["keys"] == 1
    with refused(LLMException, None, "LLM_FAILED"):
        mix.allocate_blocks_cache(desc(1, [4, 8]), BLOCKS_KEY)
    mix.deallocate_cache(cache)
    assert (stats(mix)["keys"], stats(mix)["caches"]) == (0, 0)
    mix.allocate_blocks_cache(desc(1, [4, 8]), BLOCKS_KEY)


# ---- deallocate_cache --------------------------------------------------------------------------


def test_deallocation(prompt):
    with pytest.raises(TypeError, match="cache only support"):
        prompt.deallocate_cache(1)
    with pytest.raises(AttributeError):
        prompt.deallocate_cache(None)
    with refused(LLMException, "cpu cache"):
        prompt.deallocate_cache(cpu_cache())
    cache = prompt.allocate_cache(desc(1, [1]))
    prompt.deallocate_cache(cache)
    prompt.deallocate_cache(cache)
    assert stats(prompt)["caches"] == 0


def test_a_dropped_handle_gives_the_cache_back(prompt):
    cache = prompt.allocate_cache(desc(1, [1]))
    assert stats(prompt)["caches"] == 1
    del cache
    gc.collect()
    assert stats(prompt)["caches"] == 0


def test_dropping_a_cpu_cache_does_nothing():
    cache = cpu_cache()
    del cache
    gc.collect()


# ---- pull_cache: what is refused without a link ------------------------------------------------


def pull(decoder, key=KEY, num_tensors=2, args=(), **kwargs):
    cache = decoder.allocate_cache(desc(num_tensors, [2, 8]))
    decoder.pull_cache(key, cache, *args, **kwargs)


@pytest.mark.parametrize("role", [PROMPT, MIX])
def test_only_a_decoder_pulls(manager_of, role):
    manager = manager_of(role)
    with refused(LLMException, str(role)):
        manager.pull_cache("key", "cache")
    with refused(LLMException, str(role)):
        manager.pull_blocks("key", "cache", [], [])


@pytest.mark.parametrize(
    ("key", "args", "kwargs", "error", "text"),
    [
        ("key", (), {}, TypeError, "cache_key only support"),
        (BLOCKS_KEY, (), {}, TypeError, "cache_key only support"),
        (None, (), {}, AttributeError, None),
        (KEY, (0, "8"), {}, TypeError, "size only support"),
        (KEY, (0, None), {}, TypeError, "size only support"),
        (KEY, (0, 2**63), {}, ValueError, "size is out of range"),
        (KEY, ("0",), {}, TypeError, "batch_index only support"),
        (KEY, (-1,), {}, ValueError, "batch_index is out of range"),
        (KEY, (2**32,), {}, ValueError, "batch_index is out of range"),
        (KEY, (-1, 2**63), {}, ValueError, "size is out of range"),
        (KEY, (0, 0), {}, LLMException, "size is 0"),
        (KEY, (0, -2), {}, LLMException, "size is -2"),
        (KEY, (), {"src_cache_offset": "0"}, TypeError, "src_cache_offset only support"),
        (KEY, (), {"dst_cache_offset": 0.0}, TypeError, "dst_cache_offset only support"),
        (KEY, (), {"src_cache_offset": -1}, ValueError, "src_cache_offset is out of range"),
        (KEY, (), {"dst_cache_offset": 2**63}, ValueError, "dst_cache_offset is out of range"),
        (CacheKey(1, UINT64_MAX), (), {}, LLMException, "neither"),
        (CacheKey(1, 1, 0, 1), (), {}, LLMException, "both"),
        (CacheKey(1, UINT64_MAX), (0, 0), {}, LLMException, "size is 0"),
        (KEY, (), {"tensor_num_per_layer": 1.0}, TypeError, "tensor_num_per_layer"),
        (KEY, (), {"tensor_num_per_layer": "x"}, TypeError, "tensor_num_per_layer"),
        (KEY, (), {"tensor_num_per_layer": None}, TypeError, "tensor_num_per_layer"),
        (KEY, (), {"tensor_num_per_layer": -1}, ValueError, "tensor_num_per_layer"),
        (KEY, (), {"tensor_num_per_layer": 0}, LLMException, "tensor_num_per_layer"),
        (KEY, (), {"tensor_num_per_layer": 3}, LLMException, "3 tensors per layer"),
        (KEY, (), {"src_layer_range": [0]}, TypeError, "src_layer_range only support"),
        (KEY, (), {"dst_layer_range": (0, 1)}, TypeError, "dst_layer_range only support"),
        (KEY, (), {"src_layer_range": range(0, 1, 2)}, LLMException, "step 1"),
        (KEY, (), {"dst_layer_range": range(4, 1, -1)}, LLMException, "step 1"),
        (KEY, (), {"dst_layer_range": range(-1, 1)}, LLMException, "start of 0"),
        (KEY, (), {"src_layer_range": range(0, 2**32 + 1)}, ValueError, "src_layer_range"),
        (KEY, (), {"src_layer_range": range(2**32, 2**32 + 1)}, ValueError, "src_layer_range"),
        (KEY, (), {"dst_layer_range": range(1, 2)}, LLMException, "destination"),
        (KEY, (2,), {}, LLMException, "batch index 2"),
        (KEY, (0, 9), {}, LLMException, "8 bytes"),
        (KEY, (0, 8), {"dst_cache_offset": 1}, LLMException, "8 bytes"),
        (KEY, (), {"dst_cache_offset": 8}, LLMException, "8 bytes"),
    ],
)
def test_bad_pull_is_refused_before_the_link_is_looked_for(decoder, key, args, kwargs, error, text):
    with refused(error, text):
        pull(decoder, key, args=args, **kwargs)


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"src_layer_range": None, "dst_layer_range": None},
        {"src_layer_range": range(0), "dst_layer_range": range(3, 1)},
        {"dst_layer_range": range(1)},
        {"tensor_num_per_layer": 1},
        {"src_cache_offset": None, "dst_cache_offset": None},
        {"a_keyword_that_nobody_knows": 1},
        {"size": 8},
        {"batch_index": 1},
    ],
)
def test_good_pull_needs_a_link(decoder, kwargs):
    with refused(LLMException, "cluster 1", NOT_LINKED):
        pull(decoder, **kwargs)


@pytest.mark.parametrize("cache_id", [-1, 0, 1])
def test_pull_by_id_needs_a_link(decoder, cache_id):
    with refused(LLMException, "cluster 7", NOT_LINKED):
        pull(decoder, CacheKeyByIdAndIndex(7, cache_id, 3))


def test_a_single_tensor_has_no_layers_of_two(decoder):
    for key in (KEY, CacheKeyByIdAndIndex(1, 1)):
        with refused(LLMException, None, NOT_LINKED):
            pull(decoder, key, num_tensors=1)
        with refused(LLMException, "multiple"):
            pull(decoder, key, num_tensors=1, src_layer_range=range(1))
        with refused(LLMException, None, NOT_LINKED):
            pull(decoder, key, 1, src_layer_range=range(1), tensor_num_per_layer=1)


def test_deallocated_destination_is_noticed_before_the_link(decoder):
    cache = decoder.allocate_cache(desc(2, [2, 8]))
    decoder.deallocate_cache(cache)
    with refused(LLMException, None, NOT_EXIST):
        decoder.pull_cache(KEY, cache)
    with refused(LLMException, None, NOT_EXIST):
        decoder.pull_blocks(BLOCKS_KEY, cache, [0], [0])


@pytest.mark.parametrize(
    ("cache", "error"),
    [("cache", TypeError), (None, AttributeError), (cpu_cache(), LLMException)],
)
def test_bad_destination_is_refused(decoder, cache, error):
    with refused(error):
        decoder.pull_cache(KEY, cache)
    with refused(error):
        decoder.pull_blocks(BLOCKS_KEY, cache, [0], [0])


@pytest.mark.parametrize(
    ("key", "src", "dst", "kwargs", "error", "text"),
    [
        (KEY, [0], [0], {}, TypeError, "prompt_cache_key only support"),
        (None, [0], [0], {}, AttributeError, None),
        (BLOCKS_KEY, (0,), [0], {}, TypeError, "prompt_blocks only support"),
        (BLOCKS_KEY, [0], (0,), {}, TypeError, "decoder_blocks only support"),
        (BLOCKS_KEY, None, [0], {}, TypeError, "prompt_blocks only support"),
        (BLOCKS_KEY, [0], None, {}, TypeError, "decoder_blocks only support"),
        (BLOCKS_KEY, ["0"], [0], {}, TypeError, "prompt_blocks inner type only support"),
        (BLOCKS_KEY, [0], [0.0], {}, TypeError, "decoder_blocks inner type only support"),
        (BLOCKS_KEY, [], [], {}, LLMException, "at least one"),
        (BLOCKS_KEY, [], [0], {}, LLMException, "at least one"),
        (BLOCKS_KEY, [0, 1], [0], {}, LLMException, "2 entries"),
        (BLOCKS_KEY, [-1], [0], {}, ValueError, "prompt_blocks is out of range"),
        (BLOCKS_KEY, [0], [-1], {}, ValueError, "decoder_blocks is out of range"),
        (BLOCKS_KEY, [2**64], [0], {}, ValueError, "prompt_blocks is out of range"),
        (BLOCKS_KEY, [0], [2], {}, LLMException, "2"),
        (BlocksCacheKey(1, -1), [0], [0], {}, ValueError, "model_id is out of range"),
        (BlocksCacheKey(-1), [0], [0], {}, ValueError, "cluster_id is out of range"),
        (BLOCKS_KEY, [0], [0], {"tensor_num_per_layer": 1.0}, TypeError, "tensor_num"),
        (BLOCKS_KEY, [0], [0], {"tensor_num_per_layer": 0}, LLMException, "tensor_num"),
        (BLOCKS_KEY, [0], [0], {"src_layer_range": range(0, 4, 2)}, LLMException, "step 1"),
        (BLOCKS_KEY, [0], [0], {}, LLMException, None),
    ],
)
def test_bad_pull_of_blocks_is_refused(decoder, key, src, dst, kwargs, error, text):
    cache = decoder.allocate_blocks_cache(desc(2, [2, 8]))
    status = NOT_LINKED if (src, dst, kwargs) == ([0], [0], {}) else "LLM_PARAM_INVALID"
    with refused(error, text, status):
        decoder.pull_blocks(key, cache, src, dst, **kwargs)


# ---- the rest ----------------------------------------------------------------------------------


def test_check_cache_key(decoder):
    for manager in (decoder, type(decoder)):
        manager.check_cache_key(CacheKey(1, 0))
        manager.check_cache_key(CacheKey(1, UINT64_MAX, 0, 0))
        with refused(LLMException, "both"):
            manager.check_cache_key(CacheKey(1, 0, 0, 0))
        with refused(LLMException, "neither"):
            manager.check_cache_key(CacheKey(1, UINT64_MAX))
        with pytest.raises(AttributeError):
            manager.check_cache_key(None)


def test_get_cache_tensors_arguments(decoder):
    with pytest.raises(TypeError, match="cache only support"):
        decoder.get_cache_tensors(1)
    with pytest.raises(AttributeError):
        decoder.get_cache_tensors(None)
    with refused(LLMException, None, NOT_EXIST):
        decoder.get_cache_tensors(cpu_cache())


def test_upstreams_shape_of_eighty_tensors(prompt):
    cache = prompt.allocate_cache(CacheDesc(80, [2, 8], DataType.DT_FLOAT16), [CacheKey(0, 0, 1)])
    with refused(LLMException):
        prompt.get_cache_tensors(cache, -1)
    assert len(prompt.get_cache_tensors(cache, 79)) == 1
    prompt.deallocate_cache(cache)
    prompt.remove_cache_key(CacheKey(0, 0, 1))
    assert stats(prompt)["caches"] == 0


def test_calls_from_many_threads(prompt):
    from test_rig import Call

    def work(number):
        for at in range(50):
            key = CacheKey(1, number * 1000 + at)
            cache = prompt.allocate_cache(desc(4, [2, 64]), [key])
            prompt.get_cache_tensors(cache, at % 4)
            prompt.deallocate_cache(cache)
            prompt.remove_cache_key(key)

    for call in [Call(work, number) for number in range(8)]:
        call.result()
    assert (stats(prompt)["caches"], stats(prompt)["keys"]) == (0, 0)
