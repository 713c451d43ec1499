"""Tensor and TensorDesc, made from arrays and over the memory of caches."""

import ctypes
import gc
import struct

import numpy
import pytest
from test_rig import desc, options, refused

from llm_datadist import DataType, LLMDataDist, LLMRole, Tensor, TensorDesc

NUMERIC = [
    (DataType.DT_FLOAT, "float32", "f"),
    (DataType.DT_FLOAT16, "float16", "e"),
    (DataType.DT_INT8, "int8", "b"),
    (DataType.DT_INT32, "int32", "i"),
    (DataType.DT_UINT8, "uint8", "B"),
    (DataType.DT_INT16, "int16", "h"),
    (DataType.DT_UINT16, "uint16", "H"),
    (DataType.DT_UINT32, "uint32", "I"),
    (DataType.DT_INT64, "int64", "q"),
    (DataType.DT_UINT64, "uint64", "Q"),
    (DataType.DT_DOUBLE, "float64", "d"),
    (DataType.DT_BOOL, "bool", "?"),
]


@pytest.fixture
def manager():
    dist = LLMDataDist(LLMRole.DECODER, 2)
    dist.init(options(listen=None))
    yield dist.kv_cache_manager
    dist.finalize()


# ---- TensorDesc --------------------------------------------------------------------------------


def test_desc():
    found = TensorDesc(DataType.DT_FLOAT, (2, 3))
    assert (found.dtype, found.shape) == (DataType.DT_FLOAT, [2, 3])
    assert found.shape is not found.shape
    assert str(found) == "TensorDesc(dtype=DataType.DT_FLOAT, shape=[2, 3])"
    for args in ((1, [1]), (DataType.DT_INT8, 1), (DataType.DT_INT8, ["1"]), (None, [1])):
        with pytest.raises(TypeError, match="only support"):
            TensorDesc(*args)


# ---- made from arrays --------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "name", "code"), NUMERIC)
@pytest.mark.parametrize("is_described", [False, True])
def test_array_is_copied_in_and_out(dtype, name, code, is_described):
    source = numpy.arange(6).reshape(2, 3).astype(name)
    tensor = Tensor(source, TensorDesc(dtype, (2, 3)) if is_described else None)
    kept = source.copy()
    source[:] = 0
    assert (tensor.numpy() == kept).all()
    assert tensor.numpy().dtype == kept.dtype
    assert not tensor.numpy().flags.writeable
    copy = tensor.numpy(copy=True)
    assert copy.flags.writeable and copy.flags.c_contiguous
    copy[:] = 0
    assert (tensor.numpy() == kept).all()
    assert memoryview(tensor).format in (code, {"q": "l", "Q": "L"}.get(code))
    assert str(tensor) == f"Tensor({kept},tensor_desc={TensorDesc(dtype, [2, 3])})"


def test_clone_has_the_description_and_memory_of_its_own():
    first = Tensor(numpy.array([1.875], numpy.float16), TensorDesc(DataType.DT_BF16, [1]))
    clone = Tensor(first)
    memoryview(first)[0] = 0
    assert clone.numpy()[0] == 1.0
    assert first.numpy()[0] == 0.0


def test_bf16_keeps_bits_and_is_widened():
    carrier = numpy.array([[1.875, -1.875]], numpy.float16)  # 0x3f80 and 0xbf80
    tensor = Tensor(carrier, TensorDesc(DataType.DT_BF16, carrier.shape))
    for copy in (False, True):
        values = tensor.numpy(copy)
        assert values.dtype == numpy.float32
        assert values.tolist() == [[1.0, -1.0]]
        assert values.flags.writeable is copy
    assert memoryview(tensor).format == "H"
    assert memoryview(tensor).tolist() == [[0x3F80, 0xBF80]]
    with pytest.raises(BufferError, match="DT_BF16"):
        numpy.from_dlpack(tensor)


def test_strings():
    source = numpy.array([["ab", "c"], ["", "dé"]])
    for desc_given in (None, TensorDesc(DataType.DT_STRING, [2, 2])):
        tensor = Tensor(source, desc_given)
        assert tensor.numpy(True).dtype == source.dtype
        assert tensor.numpy(True).tolist() == source.tolist()
        with pytest.raises(RuntimeError):
            tensor.numpy()
        assert "dé" in str(tensor)
    assert Tensor(numpy.array([b"ab"])).numpy(True).tolist() == ["ab"]
    assert Tensor(Tensor(source)).numpy(True).tolist() == source.tolist()


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (numpy.zeros((2, 3), numpy.float32), TensorDesc(DataType.DT_FLOAT, [3, 2])),
        (numpy.zeros((2, 3), numpy.float32), TensorDesc(DataType.DT_FLOAT, [6])),
        (numpy.zeros(2, numpy.float32), TensorDesc(DataType.DT_DOUBLE, [2])),
        (numpy.zeros(2, numpy.float32), TensorDesc(DataType.DT_BF16, [2])),
        (numpy.zeros(2, numpy.float32), TensorDesc(DataType.DT_STRING, [2])),
        (numpy.array(["a", "b"]), TensorDesc(DataType.DT_FLOAT, [2])),
        (numpy.zeros((2, 3), numpy.float32).T, None),
        (numpy.zeros(4, numpy.float32)[::2], None),
        (numpy.zeros(2, numpy.complex64), None),
        (numpy.zeros(2, ">f4"), None),
        (numpy.zeros(2, object), None),
    ],
)
def test_array_that_does_not_fit_is_refused(array, wanted):
    with pytest.raises(RuntimeError):
        Tensor(array, wanted)


@pytest.mark.parametrize("args", [(1,), ([1.0],), (None,), (numpy.zeros(1, "f4"), "desc")])
def test_wrong_types_are_refused(args):
    with pytest.raises(TypeError, match="only support"):
        Tensor(*args)


def test_copy_flag_is_a_bool():
    tensor = Tensor(numpy.zeros(1, numpy.float32))
    for bad in (1, None, "yes"):
        with pytest.raises(TypeError, match="only support"):
            tensor.numpy(bad)


def test_aliases_of_one_numpy_type_are_one_type():
    assert Tensor(numpy.zeros(1, numpy.longlong))._desc.dtype is DataType.DT_INT64


def test_dlpack_of_a_copied_array_is_writable():
    tensor = Tensor(numpy.zeros(2, numpy.float32))
    array = numpy.from_dlpack(tensor)
    assert tensor.__dlpack_device__() == (1, 0)
    assert array.dtype == numpy.float32 and array.shape == (2,)
    assert array.ctypes.data == numpy.asarray(memoryview(tensor)).ctypes.data


# ---- over caches -------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "name", "code"), NUMERIC)
def test_tensor_of_a_cache_shares_its_memory(manager, dtype, name, code):
    cache = manager.allocate_cache(desc(2, [3, 4], dtype))
    (tensor,) = manager.get_cache_tensors(cache, 1)
    view = memoryview(tensor)
    assert (view.shape, view.format, view.readonly) == ((3, 4), code, False)
    array = numpy.asarray(tensor)
    assert array.ctypes.data == cache.per_device_tensor_addrs[0][1]
    array[:] = numpy.arange(12).reshape(3, 4).astype(name)
    assert (manager.get_cache_tensors(cache, 1)[0].numpy() == array).all()
    assert (manager.get_cache_tensors(cache, 0)[0].numpy() == 0).all()
    assert not tensor.numpy().flags.writeable
    first = ctypes.string_at(cache.per_device_tensor_addrs[0][1], view.nbytes)
    assert first == array.tobytes()
    shared = numpy.from_dlpack(tensor)
    assert shared.dtype == array.dtype and shared.shape == (3, 4)
    assert shared.ctypes.data == array.ctypes.data
    copy = Tensor(tensor)
    array[:] = 0
    assert (copy.numpy() == numpy.arange(12).reshape(3, 4).astype(name)).all()


def dlpack_type(capsule):
    """Return (code, bits, lanes) out of a DLPack capsule; data, device and ndim stand before."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype = ctypes.c_void_p
    get.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return struct.unpack_from("PiiiBBH", ctypes.string_at(get(capsule, b"dltensor"), 24))[4:]


def test_bf16_of_a_cache(manager):
    cache = manager.allocate_cache(desc(1, [2], DataType.DT_BF16))
    (tensor,) = manager.get_cache_tensors(cache)
    view = memoryview(tensor)
    assert view.format == "H"
    view[1] = 0x3FC0
    assert tensor.numpy().tolist() == [0.0, 1.5]
    assert dlpack_type(tensor.__dlpack__()) == (4, 16, 1)  # bfloat, bits, lanes


def test_strings_of_a_cache(manager):
    cache = manager.allocate_cache(desc(1, [2], DataType.DT_STRING))
    (tensor,) = manager.get_cache_tensors(cache)
    memoryview(tensor).cast("B")[16:19] = b"abc"
    assert tensor.numpy(True).tolist() == ["", "abc"]
    assert "abc" in str(tensor)
    with pytest.raises(RuntimeError):
        tensor.numpy()


def test_tensor_outlives_cache_and_instance(manager):
    cache = manager.allocate_cache(desc(1, [1 << 20]))
    (tensor,) = manager.get_cache_tensors(cache)
    memoryview(tensor)[:4] = b"kept"
    manager.deallocate_cache(cache)
    LLMDataDist.llm_engine_instance.finalize()
    del cache, manager
    gc.collect()
    assert bytes(memoryview(tensor)[:4]) == b"kept"
    memoryview(tensor)[-1] = 1
    assert tensor.numpy()[-1] == 1


def test_tensor_has_the_shape_of_the_allocation(manager):
    shape = [2, 3]
    given = desc(1, shape)
    cache = manager.allocate_cache(given)
    given.update_dim(1, 5)
    assert memoryview(manager.get_cache_tensors(cache)[0]).shape == (2, 3)


@pytest.mark.parametrize(
    ("index", "error"),
    [(-1, None), (2, None), (2**31, ValueError), ("0", TypeError), (None, TypeError)],
)
def test_bad_tensor_index_is_refused(manager, index, error):
    from llm_datadist import LLMException

    cache = manager.allocate_cache(desc(2, [1]))
    with refused(error or LLMException):
        manager.get_cache_tensors(cache, index)
