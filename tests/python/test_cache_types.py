"""CacheDesc, the keys, KvCache, and the types of layer-wise transfer."""

import pytest
from test_rig import refused

from llm_datadist import (
    BlocksCacheKey,
    CacheDesc,
    CacheKey,
    CacheKeyByIdAndIndex,
    DataType,
    KvCache,
    LayerSynchronizer,
    LLMException,
    MemInfo,
    Memtype,
    Placement,
    TransferConfig,
    TransferWithCacheKeyConfig,
)
from llm_datadist.v2.llm_types import check_layer_range, int_to_mem_status_dict
from llm_datadist.v2.llm_utils import calc_tensor_size, is_invalid_id, is_valid_id

U64 = 2**64
FP16 = DataType.DT_FLOAT16


# ---- CacheDesc ---------------------------------------------------------------------------------


def test_cache_desc_keeps_what_it_was_given():
    shape = [4, 2048, 8, 128]
    desc = CacheDesc(160, shape, FP16, Placement.HOST, 1, 2, "NHD")
    assert desc.num_tensors == 160
    assert desc.shape is shape
    assert desc.data_type is FP16
    assert desc.placement is Placement.HOST
    assert desc.batch_dim == 1
    assert desc.batch_size == 2048
    assert desc.seq_len_dim_index == 2
    assert desc.kv_tensor_format == "NHD"
    assert desc.size == 4 * 2048 * 8 * 128 * 2
    assert (
        repr(desc) == "CacheDesc(num_tensors=160, shape=[4, 2048, 8, 128], "
        "data_type=DataType.DT_FLOAT16, placement=Placement.HOST, batch_dim_index=1, "
        "seq_len_dim_index=2,kv_tensor_format=NHD)"
    )


def test_cache_desc_defaults():
    desc = CacheDesc(num_tensors=0, shape=(3, 10), data_type=DataType.DT_FLOAT)
    assert (desc.placement, desc.batch_dim, desc.seq_len_dim_index) == (Placement.DEVICE, 0, -1)
    assert desc.kv_tensor_format is None
    assert desc.size == 120
    with pytest.raises(AttributeError):
        desc.num_tensors = 1


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"num_tensors": -1}, ValueError),
        ({"num_tensors": 2**32}, ValueError),
        ({"num_tensors": "1"}, TypeError),
        ({"num_tensors": None}, TypeError),
        ({"shape": "12"}, TypeError),
        ({"shape": {1, 2}}, TypeError),
        ({"shape": [1, "2"]}, TypeError),
        ({"shape": [1, 2.0]}, TypeError),
        ({"shape": []}, LLMException),
        ({"shape": [2**63, 1]}, ValueError),
        ({"data_type": 1}, TypeError),
        ({"placement": 1}, TypeError),
        ({"batch_dim_index": "0"}, TypeError),
        ({"batch_dim_index": 2}, LLMException),
        ({"batch_dim_index": -1}, LLMException),
        ({"seq_len_dim_index": 1.0}, TypeError),
        ({"seq_len_dim_index": 2**31}, ValueError),
        ({"seq_len_dim_index": 2}, LLMException),
        ({"seq_len_dim_index": -2}, LLMException),
        ({"kv_tensor_format": 1}, TypeError),
    ],
)
def test_bad_cache_desc_is_refused(changes, error):
    with refused(error):
        CacheDesc(**{"num_tensors": 1, "shape": [2, 3], "data_type": FP16, **changes})


def test_cache_desc_checks_in_order():
    with pytest.raises(TypeError, match="shape"):
        CacheDesc(1, "x", 1, 1)
    with pytest.raises(TypeError, match="data_type"):
        CacheDesc(1, [2**63], 1, 1)
    with pytest.raises(ValueError, match="shape is out of range"):
        CacheDesc(1, [1, 2**63], FP16, Placement.DEVICE, 0, -1, None)


def test_size_refuses_what_has_none():
    for shape in ([1, 0], [1, -1]):
        with refused(LLMException, "dimension"):
            _ = CacheDesc(1, shape, FP16).size
    with refused(LLMException, "exceeds"):
        _ = CacheDesc(1, [2**62, 2], FP16).size
    assert CacheDesc(1, [2**62 - 1], FP16).size == 2**63 - 2


def test_update_dim_writes_into_the_shape():
    shape = [4, 8]
    desc = CacheDesc(1, shape, FP16)
    assert desc.size == 64
    desc.update_dim(0, 2)
    assert shape == [2, 8]
    assert (desc.size, desc.batch_size) == (32, 4)
    with pytest.raises(TypeError):
        CacheDesc(1, (4, 8), FP16).update_dim(0, 2)


def test_sizes_and_ids():
    assert calc_tensor_size([2, 3], DataType.DT_STRING) == 96
    assert is_valid_id(0) and not is_valid_id(U64 - 1)
    assert is_invalid_id(U64 - 1) and not is_invalid_id(0)


# ---- keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "values"),
    [
        (CacheKey(1, 2), (1, 2, 0, U64 - 1)),
        (CacheKey(1, 2, 3, 4), (1, 2, 3, 4)),
        (CacheKey(cluster_id=1, req_id=2), (1, 2, 0, U64 - 1)),
        (CacheKey(prompt_cluster_id=1, req_id=2, model_id=3, prefix_id=4), (1, 2, 3, 4)),
        (CacheKey(1, 2, cluster_id=9), (1, 2, 0, U64 - 1)),
        (CacheKey(cluster_id=1, prompt_cluster_id=9, req_id=2), (1, 2, 0, U64 - 1)),
        (CacheKey(U64 - 1, U64 - 1), (U64 - 1, U64 - 1, 0, U64 - 1)),
        (CacheKey(True, False), (1, 0, 0, U64 - 1)),
    ],
)
def test_cache_key(key, values):
    assert (key.cluster_id, key.req_id, key.model_id, key.prefix_id) == values
    assert key.prompt_cluster_id == key.cluster_id
    with pytest.raises(AttributeError):
        key.req_id = 1


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "text"),
    [
        ((1, 2, 3, 4, 5), {}, LLMException, "Param num is over limit"),
        ((1, 2, 3), {"prefix_id": 1, "x": 1}, LLMException, "Param num is over limit"),
        ((), {}, LLMException, "cluster_id is required"),
        ((), {"req_id": 1}, LLMException, "cluster_id is required"),
        ((1,), {}, LLMException, "req_id is required"),
        ((), {"cluster_id": 1}, LLMException, "req_id is required"),
        ((1, 2), {"request_id": 1}, LLMException, "Unsupported"),
        ((-1, 2), {}, ValueError, "cluster_id is out of range"),
        ((1, U64), {}, ValueError, "req_id is out of range"),
        ((1, 2, "3"), {}, TypeError, "model_id only support"),
        ((1, 2, 3, None), {}, TypeError, "prefix_id only support"),
        ((None, 2), {}, TypeError, "cluster_id only support"),
    ],
)
def test_bad_cache_key_is_refused(args, kwargs, error, text):
    with refused(error, text):
        CacheKey(*args, **kwargs)


def test_key_by_id():
    key = CacheKeyByIdAndIndex(1, -2, 3)
    assert (key.cluster_id, key.cache_id, key.batch_index) == (1, -2, 3)
    assert repr(key) == "CacheKeyByIdAndIndex(cluster_id=1, cache_id=-2, batch_index=3)"
    assert CacheKeyByIdAndIndex(cluster_id=1, cache_id=2).batch_index == 0
    assert not hasattr(key, "prompt_cluster_id")
    for args, error in [
        ((-1, 1), ValueError),
        ((1, 2**63), ValueError),
        ((1, 1, 2**32), ValueError),
        ((1, 1, -1), ValueError),
        (("1", 1), TypeError),
        ((1, None), TypeError),
    ]:
        with refused(error):
            CacheKeyByIdAndIndex(*args)


@pytest.mark.parametrize(
    ("key", "values", "text"),
    [
        (BlocksCacheKey(1), (1, 0), "BlocksCacheKey(cluster_id=1, model_id=0)"),
        (BlocksCacheKey(1, 2), (1, 2), "BlocksCacheKey(cluster_id=1, model_id=2)"),
        (
            BlocksCacheKey(prompt_cluster_id=1, model_id=2),
            (1, 2),
            "BlocksCacheKey(prompt_cluster_id=1, model_id=2)",
        ),
        (
            BlocksCacheKey(cluster_id=1, prompt_cluster_id=9),
            (1, 0),
            "BlocksCacheKey(cluster_id=1, model_id=0)",
        ),
        (BlocksCacheKey(-1), (-1, 0), "BlocksCacheKey(cluster_id=-1, model_id=0)"),
    ],
)
def test_blocks_key(key, values, text):
    assert (key.cluster_id, key.model_id) == values
    assert key.prompt_cluster_id == key.cluster_id
    assert repr(key) == text


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "text"),
    [
        ((1, 2, 3), {}, LLMException, "Param num is over limit"),
        ((), {}, LLMException, "cluster_id is required"),
        ((), {"model_id": 1}, LLMException, "cluster_id is required"),
        ((1,), {"req_id": 1}, LLMException, "Unsupported"),
        (("1",), {}, TypeError, "^The first param .*only support"),
        ((1, "2"), {}, TypeError, "^The second param .*only support"),
    ],
)
def test_bad_blocks_key_is_refused(args, kwargs, error, text):
    with refused(error, text):
        BlocksCacheKey(*args, **kwargs)


def test_repr_of_cache_key():
    text = "CacheKey(cluster_id=1, req_id=2, prefix_id=4, model_id=3)"
    assert repr(CacheKey(1, 2, 3, 4)) == text


def test_keys_compare_by_identity():
    assert CacheKey(1, 2) != CacheKey(1, 2)
    assert len({CacheKey(1, 2), CacheKey(1, 2)}) == 2


# ---- KvCache -----------------------------------------------------------------------------------


def host_desc(num_tensors):
    return CacheDesc(num_tensors, [2, 3], FP16, Placement.HOST)


@pytest.mark.parametrize(
    ("addrs", "per_device"), [([10, 20], [[10, 20]]), ([[1, 2], [3, 4]], [[1, 2], [3, 4]])]
)
def test_cpu_cache(addrs, per_device):
    cache = KvCache.create_cpu_cache(host_desc(2), addrs)
    assert cache.cache_id == -1
    assert cache.per_device_tensor_addrs == per_device
    assert str(cache) == repr(cache) == f"KvCache(cache_id = -1, num_devices = {len(per_device)})"


@pytest.mark.parametrize(
    ("desc", "addrs", "error", "text"),
    [
        ("desc", [1], TypeError, "cache_desc only support"),
        (None, [1], AttributeError, None),
        (CacheDesc(1, [1], FP16), [1], LLMException, "placement"),
        (host_desc(1), (1,), TypeError, "addrs only support"),
        (host_desc(1), None, TypeError, None),
        (host_desc(1), [], LLMException, "empty"),
        (host_desc(1), ["1"], TypeError, "inner type only support"),
        (host_desc(1), [["1"]], TypeError, "inner type only support"),
        (host_desc(2), [[1]], LLMException, "1 addresses"),
        (host_desc(1), [[1], 1], LLMException, "should be consistent"),
        (host_desc(1), [1, [1]], LLMException, "should be consistent"),
        (host_desc(2), [1], LLMException, "1 addresses"),
        (host_desc(0), [1], LLMException, "1 addresses"),
    ],
)
def test_bad_cpu_cache_is_refused(desc, addrs, error, text):
    with refused(error, text):
        KvCache.create_cpu_cache(desc, addrs)


# ---- layer-wise transfer -----------------------------------------------------------------------


def test_mem_info():
    info = MemInfo(Memtype.MEM_TYPE_DEVICE, 0, -1)
    assert (info.mem_type, info.addr, info.size) == (Memtype.MEM_TYPE_DEVICE, 0, -1)
    text = "MemInfo(mem_type=Memtype.MEM_TYPE_DEVICE, addr=0, size=-1)"
    assert str(info) == repr(info) == text
    for args in ((0, 1, 1), (Memtype.MEM_TYPE_HOST, "1", 1), (Memtype.MEM_TYPE_HOST, 1, 1.0)):
        with pytest.raises(TypeError, match="only support"):
            MemInfo(*args)


def test_register_status_numbers():
    assert {number: status.name for number, status in int_to_mem_status_dict.items()} == {
        0: "OK",
        1: "PREPARING",
        2: "FAILED",
    }


def test_layer_synchronizer_is_abstract():
    class Half(LayerSynchronizer):
        pass

    class Whole(LayerSynchronizer):
        def synchronize_layer(self, layer_index, timeout_in_millis):
            return True

    with pytest.raises(TypeError):
        Half()
    assert Whole().synchronize_layer(0, None)


BAD_RANGES = [range(0, 5, 2), range(0, 1, -1), range(4, 1), range(0, 0), range(-1, 2)]


@pytest.mark.parametrize("bad", BAD_RANGES)
def test_layer_range(bad):
    check_layer_range("layers", None)
    check_layer_range("layers", range(1, 5))
    with refused(LLMException, "layers"):
        check_layer_range("layers", bad)
    with refused(TypeError, "only support"):
        check_layer_range("layers", [0, 1])
    with refused(TypeError, "only support"):
        check_layer_range("layers", None, allow_none=False)


def test_transfer_config():
    config = TransferConfig(1, [1, 2, 3, 4], range(1, 5), 0)
    values = (config.dst_cluster_id, config.dst_addrs, config.src_layer_range)
    assert values == (1, [1, 2, 3, 4], range(1, 5))
    assert config.src_batch_index == 0
    assert config.dst_layer_range is None
    text = (
        "TransferConfig(dst_cluster_id=1, dst_addrs=[1, 2, 3, 4], src_layer_range=range(1, 5), "
        "src_batch_index=0)"
    )
    assert str(config) == repr(config) == text
    assert TransferConfig(1, ()).src_layer_range is None


TRANSFER_REFUSED = [
    ("dst_cluster_id", "1", TypeError),
    ("dst_cluster_id", None, TypeError),
    ("dst_cluster_id", -1, ValueError),
    ("dst_addrs", None, TypeError),
    ("dst_addrs", 1, TypeError),
    ("dst_addrs", ["1"], TypeError),
    ("dst_addrs", [-1], ValueError),
    ("dst_addrs", [U64], ValueError),
    ("src_layer_range", [0], TypeError),
    ("src_batch_index", None, TypeError),
    ("src_batch_index", -1, ValueError),
    ("src_batch_index", 2**32, ValueError),
] + [("src_layer_range", bad, LLMException) for bad in BAD_RANGES]


@pytest.mark.parametrize(("name", "bad", "error"), TRANSFER_REFUSED)
def test_bad_transfer_config_is_refused(name, bad, error):
    with refused(error):
        TransferConfig(**{"dst_cluster_id": 1, "dst_addrs": [1], name: bad})
    config = TransferConfig(1, [1])
    with refused(error):
        setattr(config, name, bad)


def test_transfer_config_setters_keep_references():
    config = TransferConfig(1, [1])
    addrs = (5, 6)
    config.dst_addrs = addrs
    config.dst_cluster_id = 2
    config.src_layer_range = range(3)
    config.src_batch_index = 4
    assert config.dst_addrs is addrs
    assert (config.dst_cluster_id, config.src_batch_index) == (2, 4)


def test_transfer_with_key_config():
    key = CacheKeyByIdAndIndex(1, 1)
    config = TransferWithCacheKeyConfig(key, range(1, 5), range(2, 6), 3)
    assert config.cache_key is key
    assert (config.src_layer_range, config.dst_layer_range) == (range(1, 5), range(2, 6))
    assert (config.src_batch_index, config.dst_cluster_id) == (3, 1)
    assert repr(config) == (
        f"TransferWithCacheKeyConfig(cache_key={key}, src_layer_range=range(1, 5), "
        "dst_layer_range=range(2, 6), src_batch_index=3)"
    )
    config.cache_key = BlocksCacheKey(7)
    assert config.dst_cluster_id == 7
    with refused(LLMException, "BlocksCacheKey"):
        config.src_batch_index = 1
    with refused(LLMException, "BlocksCacheKey"):
        config.src_batch_index = "1"
    config.src_batch_index = 0


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"cache_key": None}, TypeError),
        ({"cache_key": CacheKey(1, 1)}, TypeError),
        ({"src_layer_range": None}, TypeError),
        ({"dst_layer_range": None}, TypeError),
        ({"dst_layer_range": range(3)}, LLMException),
        ({"src_layer_range": range(0)}, LLMException),
        ({"src_batch_index": -1}, ValueError),
        ({"src_batch_index": "0"}, TypeError),
        ({"src_batch_index": 1}, LLMException),
    ],
)
def test_bad_transfer_with_key_config_is_refused(changes, error):
    good = {
        "cache_key": BlocksCacheKey(1),
        "src_layer_range": range(2),
        "dst_layer_range": range(1, 3),
    }
    with refused(error):
        TransferWithCacheKeyConfig(**{**good, **changes})
