"""The extension module: conversions, errors, buffers, DLPack, lifetimes, the interpreter lock.

It is tested by itself, without the package's classes around it, against the real library.
"""

import contextlib
import copy
import ctypes
import errno
import gc
import importlib.util
import inspect
import os
import pickle
import re
import socket
import subprocess
import sys
import threading
import weakref

import numpy
import pytest

from llm_datadist._extension import _datadist

OK = 0
NO_CACHE = 0x5010B002
INVALID = 0x5010B005
FINALIZED = 0x5010B006
NOT_LINKED = 0x5010B007
LINK_FAILED = 0x5010B009
TIMEOUT = 0x5010B01A

FLOAT32, INT32, UINT8, STRING, BFLOAT16 = 0, 3, 4, 13, 27
HOST, DEVICE = 0, 1
PROMPT, DECODER = 1, 2
REQUEST, PREFIX, BLOCKS = 1, 2, 3

# number, buffer format, numpy type, code and bits of DLPack (None: it has no such type)
TYPES = [
    (0, "f", numpy.float32, (2, 32)),
    (1, "e", numpy.float16, (2, 16)),
    (2, "b", numpy.int8, (0, 8)),
    (3, "i", numpy.int32, (0, 32)),
    (4, "B", numpy.uint8, (1, 8)),
    (6, "h", numpy.int16, (0, 16)),
    (7, "H", numpy.uint16, (1, 16)),
    (8, "I", numpy.uint32, (1, 32)),
    (9, "q", numpy.int64, (0, 64)),
    (10, "Q", numpy.uint64, (1, 64)),
    (11, "d", numpy.float64, (2, 64)),
    (12, "?", numpy.bool_, (6, 8)),
    (13, "16s", "S16", None),
    (27, "H", numpy.uint16, (4, 16)),
]

WAIT_S = 30  # longer than anything here takes; what takes longer hangs


@contextlib.contextmanager
def running(cluster_id, role=PROMPT, listen="127.0.0.1:0"):
    engine = _datadist.Engine(cluster_id, role)
    engine.set("datadist.listen", listen)
    engine.set("datadist.sync_timeout_ms", "20000")
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


@pytest.fixture
def engine():
    with running(1) as found:
        yield found


@pytest.fixture
def pair():
    """A listener with cluster id 1, and one with id 2 that is linked to it."""
    with running(1) as prompt, running(2, DECODER, "") as decoder:
        assert decoder.link_open([(1, prompt.address(), None)], 10000) == (OK, [OK], "")
        yield prompt, decoder


def alloc(engine, dims, data_type=UINT8, tensors=2, keys=()):
    return engine.cache_alloc(tensors, dims, data_type, HOST, keys)


def array(engine, cache, tensor, dims, data_type=UINT8):
    return numpy.asarray(engine.view(cache, 0, tensor, dims, data_type))


def fails(status, call, *args, **kwargs):
    with pytest.raises(_datadist.Error) as caught:
        call(*args, **kwargs)
    assert caught.value.status == status, caught.value
    return caught.value


def run_python(code):
    """Run a program that has the extension as `_datadist`; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", "from llm_datadist._extension import _datadist\n" + code],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- module and types ------------------------------------------------------------------------------


def test_version_is_text():
    assert re.fullmatch(r"\d+\.\d+\.\d+", _datadist.VERSION)


def test_engine_and_view_cannot_be_subclassed_copied_or_pickled(engine):
    view = engine.view(alloc(engine, [4]), 0, 0, [4], UINT8)
    for thing in (engine, view):
        with pytest.raises(TypeError):
            type("Sub", (type(thing),), {})
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError):
                way(thing)
    with pytest.raises(TypeError, match="Engine.view"):
        _datadist.View()


def test_every_method_has_a_documented_signature():
    for cls in (_datadist.Engine, _datadist.View):
        for name, method in vars(cls).items():
            if callable(method) and name != "__new__":
                assert method.__doc__, name
                inspect.signature(method)
    pull = inspect.signature(_datadist.Engine.pull).parameters
    assert pull["tensors_per_layer"].default == 2
    assert pull["src_layers"].default == (0, 0)
    assert pull["keep_key"].default is False


def load_again():
    spec = importlib.util.spec_from_file_location("_datadist", _datadist.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_second_load_has_state_of_its_own_and_goes_away():
    module = load_again()
    assert module.Error is not _datadist.Error
    engine = module.Engine(1, PROMPT)
    with pytest.raises(module.Error):
        engine.set("nonsense", "1")
    module.engine = engine  # a cycle: engine, its type, the module
    module.tensor = module.TensorBase()
    gone = weakref.ref(module)
    del module, engine
    gc.collect()
    assert gone() is None


# ---- conversions -----------------------------------------------------------------------------------

# The arguments of each method, good ones; the engine answers them with some status.
GOOD = {
    "set": ("datadist.workers", "1"),
    "link_open": ([(9, "127.0.0.1:1", None)], 100),
    "link_close": ([(9, None)], 100, True),
    "link_check": (9,),
    "cache_alloc": (2, [4, 4], UINT8, HOST, [(REQUEST, 7, 0)]),
    "cache_addresses": (99, 0, 2),
    "cache_free": (99,),
    "key_remove": (REQUEST, 7, 0),
    "pull": (9, (REQUEST, 7, 0), 99),
    "pull_blocks": (9, (BLOCKS, 0, 0), 99, [0], [1]),
    "view": (99, 0, 0, [4], UINT8),
}

# method, path to one number (position, or positions inside), name in the text, width
NUMBERS = [
    ("link_open", (0, 0, 0), "cluster_id", "uint64"),
    ("link_open", (1,), "timeout_ms", "uint32"),
    ("link_close", (0, 0, 0), "cluster_id", "uint64"),
    ("link_close", (1,), "timeout_ms", "uint32"),
    ("link_check", (0,), "cluster_id", "uint64"),
    ("cache_alloc", (0,), "tensor_count", "uint32"),
    ("cache_alloc", (1, 0), "dims", "int64"),
    ("cache_alloc", (2,), "data_type", "uint32"),
    ("cache_alloc", (3,), "placement", "uint32"),
    ("cache_alloc", (4, 0, 0), "key kind", "uint32"),
    ("cache_alloc", (4, 0, 1), "key id", "uint64"),
    ("cache_alloc", (4, 0, 2), "key model_id", "uint64"),
    ("cache_addresses", (0,), "cache_id", "int64"),
    ("cache_addresses", (1,), "device", "uint32"),
    ("cache_addresses", (2,), "tensor_count", "uint32"),
    ("cache_free", (0,), "cache_id", "int64"),
    ("key_remove", (0,), "key kind", "uint32"),
    ("key_remove", (1,), "key id", "uint64"),
    ("key_remove", (2,), "key model_id", "uint64"),
    ("pull", (0,), "cluster_id", "uint64"),
    ("pull", (1, 1), "key id", "uint64"),
    ("pull", (2,), "cache_id", "int64"),
    ("pull_blocks", (0,), "cluster_id", "uint64"),
    ("pull_blocks", (2,), "cache_id", "int64"),
    ("pull_blocks", (3, 0), "src_blocks", "uint64"),
    ("pull_blocks", (4, 0), "dst_blocks", "uint64"),
    ("view", (0,), "cache_id", "int64"),
    ("view", (1,), "device", "uint32"),
    ("view", (2,), "tensor", "uint32"),
    ("view", (4,), "data_type", "uint32"),
]

# method, keyword, width
KEYWORDS = [
    ("pull", "src_cache", "int64"),
    ("pull", "src_batch", "uint32"),
    ("pull", "dst_batch", "uint32"),
    ("pull", "bytes", "uint64"),
    ("pull", "src_offset", "uint64"),
    ("pull", "dst_offset", "uint64"),
    ("pull", "tensors_per_layer", "uint32"),
    ("pull_blocks", "src_cache", "int64"),
    ("pull_blocks", "src_batch", "uint32"),
    ("pull_blocks", "tensors_per_layer", "uint32"),
]

LIMITS = {"uint64": (0, 2**64 - 1), "uint32": (0, 2**32 - 1), "int64": (-(2**63), 2**63 - 1)}


def replaced(value, path, new):
    """A copy of nested lists and tuples with what is at `path` replaced."""
    if not path:
        return new
    items = list(value)
    items[path[0]] = replaced(items[path[0]], path[1:], new)
    return type(value)(items)


def outside(width):
    low, high = LIMITS[width]
    return low - 1, high + 1, 10**5000


def accepts(call, *args, **kwargs):
    """The arguments get as far as the library, whatever it says to them."""
    with contextlib.suppress(_datadist.Error):
        call(*args, **kwargs)


@pytest.mark.parametrize(("method", "path", "name", "width"), NUMBERS)
def test_number_in_its_width(engine, method, path, name, width):
    call = getattr(engine, method)
    for good in (*LIMITS[width], True):
        if name not in ("timeout_ms", "tensor_count") or good < 1000:
            accepts(call, *replaced(GOOD[method], path, good))
    for bad in outside(width):
        with pytest.raises(ValueError, match=f"^{name} is out of range, .* is not a {width} value"):
            call(*replaced(GOOD[method], path, bad))
    for bad in (1.0, "1", None, numpy.uint64(1)):
        kind = type(bad).__name__
        with pytest.raises(TypeError, match=f"^{name}( inner type)? only support int, .* {kind}$"):
            call(*replaced(GOOD[method], path, bad))


@pytest.mark.parametrize(("method", "name", "width"), KEYWORDS)
def test_keyword_number_in_its_width(engine, method, name, width):
    call = getattr(engine, method)
    for good in (*LIMITS[width], True):
        accepts(call, *GOOD[method], **{name: good})
    for bad in outside(width):
        with pytest.raises(ValueError, match=f"^{name} is out of range, .* is not a {width} value"):
            call(*GOOD[method], **{name: bad})
    for bad in (1.0, None):
        with pytest.raises(TypeError, match=f"^{name} only support int"):
            call(*GOOD[method], **{name: bad})


@pytest.mark.parametrize("method", ["pull", "pull_blocks"])
@pytest.mark.parametrize("name", ["src_layers", "dst_layers"])
def test_layers_are_two_numbers(engine, method, name):
    call = getattr(engine, method)
    accepts(call, *GOOD[method], **{name: (1, 2**32 - 1)})
    for bad in ([0, 0], (0,), (0, 0, 0), 0, None, (0, "1")):
        with pytest.raises(TypeError, match=f"^{name} only support"):
            call(*GOOD[method], **{name: bad})
    for bad in ((-1, 0), (0, 2**32)):
        with pytest.raises(ValueError, match=f"^{name} is out of range.* is not a uint32 value"):
            call(*GOOD[method], **{name: bad})


@pytest.mark.parametrize(
    ("method", "path", "text"),
    [
        ("set", (0,), "key only support str, but got "),
        ("set", (1,), "value only support str, but got "),
        ("link_open", (0,), "targets only support list or tuple, but got "),
        ("link_open", (0, 0), "targets inner type only support tuple of .*, but got "),
        ("link_open", (0, 0, 1), "remote only support str, but got "),
        ("link_close", (0,), "targets only support list or tuple, but got "),
        ("link_close", (0, 0), "targets inner type only support tuple of .*, but got "),
        ("link_close", (2,), "force only support bool, but got "),
        ("cache_alloc", (1,), "dims only support list or tuple, but got "),
        ("cache_alloc", (4,), "keys only support list or tuple, but got "),
        ("cache_alloc", (4, 0), "key only support tuple of .*, but got "),
        ("pull", (1,), "key only support tuple of .*, but got "),
        ("pull_blocks", (3,), "src_blocks only support list or tuple, but got "),
        ("pull_blocks", (4,), "dst_blocks only support list or tuple, but got "),
    ],
)
def test_wrong_type(engine, method, path, text):
    allowed = {("pull", (1,)): [None], ("pull_blocks", (3,)): [None]}
    for bad in (1, b"bytes", {}, None):
        if bad in allowed.get((method, path), []):
            accepts(getattr(engine, method), *replaced(GOOD[method], path, bad))
            continue
        with pytest.raises(TypeError, match="^" + text + type(bad).__name__):
            getattr(engine, method)(*replaced(GOOD[method], path, bad))


def test_target_of_another_length_or_local_of_another_type(engine):
    for bad in ((9,), (9, "127.0.0.1:1"), (9, "127.0.0.1:1", None, None), (9, "127.0.0.1:1", 5)):
        with pytest.raises(TypeError, match="only support"):
            engine.link_open([bad], 100)
    with pytest.raises(TypeError, match="only support"):
        engine.link_close([(9, "127.0.0.1:1", None)], 100, True)


def test_every_method_refuses_another_number_of_arguments(engine):
    for method, args in GOOD.items():
        with pytest.raises(TypeError):
            getattr(engine, method)(*args, 0)
        with pytest.raises(TypeError):
            getattr(engine, method)(*args[:-1])
    with pytest.raises(TypeError):
        engine.pull(*GOOD["pull"], 0)  # the rest is by keyword only
    with pytest.raises(TypeError):
        engine.pull(*GOOD["pull"], nonsense=1)
    with pytest.raises(TypeError, match="keep_key only support bool"):
        engine.pull(*GOOD["pull"], keep_key=1)


def test_constructor():
    with pytest.raises(ValueError, match="cluster_id is out of range, -1 is not a uint64 value"):
        _datadist.Engine(-1, PROMPT)
    with pytest.raises(ValueError, match="role is out of range, -1 is not a uint32 value"):
        _datadist.Engine(1, -1)
    with pytest.raises(TypeError, match="role only support int, but got str"):
        _datadist.Engine(1, "1")
    with pytest.raises(TypeError):
        _datadist.Engine(1)
    assert "role is 4" in str(fails(INVALID, _datadist.Engine, 1, 4))
    fails(INVALID, _datadist.Engine, 1, 2**32 - 1)
    _datadist.Engine(cluster_id=2**64 - 1, role=DECODER)


def test_text_with_a_null_character_is_refused():
    fresh = _datadist.Engine(1, PROMPT)
    for args in (("datadist.listen", "a\0b"), ("a\0b", "")):
        with pytest.raises(ValueError, match="embedded null"):
            fresh.set(*args)


def test_block_lists_of_different_length_are_refused(engine):
    with pytest.raises(ValueError, match="src_blocks has 2 blocks, dst_blocks has 1"):
        engine.pull_blocks(9, (BLOCKS, 0, 0), 1, [0, 1], [0])


# ---- errors ----------------------------------------------------------------------------------------


def test_error_carries_status_system_error_and_text(engine):
    error = fails(NO_CACHE, engine.cache_free, 99)
    assert isinstance(error, RuntimeError)
    assert error.system_error == 0
    assert "99" in str(error)

    second = _datadist.Engine(2, PROMPT)
    second.set("datadist.listen", engine.address())
    with pytest.raises(_datadist.Error) as caught:
        second.start()
    assert caught.value.system_error == errno.EADDRINUSE
    assert engine.address().rpartition(":")[2] in str(caught.value)


def test_error_text_that_was_cut_inside_a_letter_is_still_a_text():
    fresh = _datadist.Engine(1, PROMPT)
    for length in range(4):  # one of them is cut between the bytes of a letter
        error = fails(INVALID, fresh.set, "a" * length + "\N{EURO SIGN}" * 600, "1")
        assert "\N{EURO SIGN}" in str(error)
    with running(3) as engine:
        for length in range(4):
            remote = "a" * length + "\N{EURO SIGN}" * 600
            assert engine.link_open([(1, remote, None)], 100)[0] == INVALID


def test_link_failures_are_values(engine):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, so that nobody else listens there
        remote = f"127.0.0.1:{closed.getsockname()[1]}"
        status, results, text = engine.link_open([(5, remote, None)], 300)
    assert (status, results) == (LINK_FAILED, [LINK_FAILED])
    assert remote in text
    assert engine.link_open([(5, "nonsense", None)], 100)[:2] == (INVALID, [INVALID])
    assert engine.link_open([], 100)[:2] == (INVALID, [])
    assert engine.link_open((), 100)[:2] == (INVALID, [])
    assert engine.link_close([], 100, True)[:2] == (INVALID, [])
    assert engine.link_close([(5, None)], 100, False)[:2] == (NOT_LINKED, [NOT_LINKED])


def test_stopped_engine_still_answers(engine):
    cache = alloc(engine, [4])
    engine.stop()
    engine.stop()
    for method, args in GOOD.items():
        if method == "link_open":
            assert engine.link_open(*args)[:2] == (FINALIZED, [])
        elif method == "link_close":
            assert engine.link_close(*args)[:2] == (FINALIZED, [])
        else:
            fails(FINALIZED, getattr(engine, method), *args)
    for call in (engine.start, engine.address, engine.stats):
        fails(FINALIZED, call)
    fails(FINALIZED, engine.cache_addresses, cache, 0, 2)


# ---- the calls -------------------------------------------------------------------------------------


def test_engine_that_does_not_listen_has_no_address():
    with running(1, listen="") as engine:
        assert engine.address() == ""


def test_addresses_and_views_name_the_same_memory(engine):
    cache = alloc(engine, [2, 3, 4], FLOAT32, tensors=3)
    addresses = engine.cache_addresses(cache, 0, 3)
    views = [engine.view(cache, 0, tensor, [2, 3, 4], FLOAT32) for tensor in range(3)]
    assert addresses == [view.address for view in views]
    assert {address % 512 for address in addresses} == {0}
    array(engine, cache, 1, [2, 3, 4], FLOAT32)[1, 2, 3] = 7
    found = ctypes.cast(addresses[1], ctypes.POINTER(ctypes.c_float))
    assert found[23] == 7


def test_pull_moves_what_the_arguments_say(pair):
    prompt, decoder = pair
    source = alloc(prompt, [2, 8], keys=[(REQUEST, 7, 3), (PREFIX, 2**64 - 2, 3)], tensors=4)
    target = alloc(decoder, [3, 8], tensors=4)
    for tensor in range(4):
        array(prompt, source, tensor, [2, 8])[:] = 16 * tensor + numpy.arange(16).reshape(2, 8)

    decoder.pull(1, (REQUEST, 7, 3), target, keep_key=True)
    assert array(decoder, target, 3, [3, 8])[0].tolist() == list(range(48, 56))

    decoder.pull(
        1, (PREFIX, 2**64 - 2, 3), target, dst_batch=2, bytes=2, src_offset=1, dst_offset=5
    )
    assert array(decoder, target, 0, [3, 8])[2].tolist() == [0, 0, 0, 0, 0, 9, 10, 0]

    layers = {"src_layers": (1, 1), "dst_layers": (0, 1)}
    decoder.pull(1, None, target, src_cache=source, src_batch=1, dst_batch=1, **layers)
    assert array(decoder, target, 1, [3, 8])[1].tolist() == list(range(56, 64))
    assert not array(decoder, target, 2, [3, 8])[1].any()
    decoder.pull(
        1, None, target, src_cache=source, tensors_per_layer=1, src_layers=(3, 1), dst_layers=(2, 1)
    )
    assert array(decoder, target, 2, [3, 8])[0].tolist() == list(range(48, 56))

    decoder.pull(1, (REQUEST, 7, 3), target)
    fails(NO_CACHE, decoder.pull, 1, (REQUEST, 7, 3), target)
    prompt.key_remove(PREFIX, 2**64 - 2, 3)
    fails(NO_CACHE, decoder.pull, 1, (PREFIX, 2**64 - 2, 3), target)


def test_pull_blocks_moves_what_the_arguments_say(pair):
    prompt, decoder = pair
    source = alloc(prompt, [8, 4], keys=[(BLOCKS, 0, 1)])
    flat = alloc(prompt, [2, 10], keys=[(REQUEST, 1, 1)])
    target = alloc(decoder, [8, 4])
    for tensor in range(2):
        array(prompt, source, tensor, [8, 4])[:] = 32 * tensor + numpy.arange(32).reshape(8, 4)
        array(prompt, flat, tensor, [2, 10])[:] = 100 + numpy.arange(20).reshape(2, 10)

    decoder.pull_blocks(1, (BLOCKS, 0, 1), target, [6, 7, 0], (1, 5, 2))
    found = array(decoder, target, 1, [8, 4])
    for src, dst in ((6, 1), (7, 5), (0, 2)):
        assert found[dst].tolist() == list(range(32 + 4 * src, 36 + 4 * src))
    assert not found[[0, 3, 4, 6, 7]].any()

    decoder.pull_blocks(1, (REQUEST, 1, 1), target, None, [7, 0, 3], src_batch=0)
    assert found[[7, 0, 3]].ravel().tolist() == [*range(100, 110), 0, 0]
    decoder.pull_blocks(1, None, target, [1], [4], src_cache=source, tensors_per_layer=1)
    assert found[4].tolist() == [36, 37, 38, 39]


def test_link_check_and_close(pair):
    _, decoder = pair
    assert decoder.link_check(1) is None
    assert decoder.stats()["links"] == 1
    assert decoder.link_close([(1, None)], 10000, False) == (OK, [OK], "")
    fails(NOT_LINKED, decoder.link_check, 1)


def test_stats_has_the_fields_of_the_header(engine):
    alloc(engine, [4], keys=[(REQUEST, 1, 0)])
    stats = engine.stats()
    assert (
        list(stats)
        == (
            "links caches keys pins pulls pulls_failed bytes_pulled serves serves_failed bytes_served "
            "pool_limit_bytes pool_used_bytes pool_peak_bytes pool_largest_free"
        ).split()
    )
    assert all(type(value) is int for value in stats.values())
    assert (stats["caches"], stats["keys"], stats["links"]) == (1, 1, 0)
    assert stats["pool_peak_bytes"] >= stats["pool_used_bytes"] > 0


# ---- View as a buffer ------------------------------------------------------------------------------


@pytest.mark.parametrize(("data_type", "letter", "numpy_type", "dlpack"), TYPES)
def test_view_has_shape_and_format(engine, data_type, letter, numpy_type, dlpack):
    dims = [2, 3, 1, 4]
    view = engine.view(alloc(engine, dims, data_type), 0, 1, dims, data_type)
    shown = memoryview(view)
    size = numpy.dtype(numpy_type).itemsize
    assert (shown.format, shown.itemsize, shown.shape) == (letter, size, (2, 3, 1, 4))
    assert shown.strides == (12 * size, 4 * size, 4 * size, size)
    assert not shown.readonly and shown.c_contiguous
    assert (view.shape, view.nbytes, view.data_type) == ((2, 3, 1, 4), 24 * size, data_type)
    found = numpy.asarray(view)
    assert found.dtype == numpy_type and found.flags.writeable and found.flags.c_contiguous
    assert found.ctypes.data == view.address
    with pytest.raises(AttributeError):
        view.address = 1


def test_view_refuses_dims_and_types_that_do_not_describe_the_memory(engine):
    cache = alloc(engine, [2, 8], FLOAT32)
    engine.view(cache, 0, 0, (4, 4), FLOAT32)  # another shape of as many bytes is fine
    engine.view(cache, 0, 0, [64], UINT8)
    for dims in ([2, 7], [], [0], [-2, -8], [2**62, 2**62, 16], [2**63 - 1, 2], [1] * 32):
        with pytest.raises(ValueError):
            engine.view(cache, 0, 0, dims, FLOAT32)
    for data_type in (5, 28, 2**32 - 1):
        with pytest.raises(ValueError, match="data_type is out of range"):
            engine.view(cache, 0, 0, [2, 8], data_type)
    fails(INVALID, engine.view, cache, 0, 2, [2, 8], FLOAT32)
    fails(INVALID, engine.view, cache, 1, 0, [2, 8], FLOAT32)
    assert engine.view(cache, 0, 0, [1] * 29 + [2, 8], FLOAT32).shape[-2:] == (2, 8)


class PyBuffer(ctypes.Structure):
    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    ]


SIMPLE, WRITABLE, FORMAT, ND, STRIDES = 0, 0x1, 0x4, 0x8, 0x18
C_CONTIGUOUS, F_CONTIGUOUS, ANY_CONTIGUOUS, INDIRECT = 0x38, 0x58, 0x98, 0x118


def test_view_answers_each_buffer_request(engine):
    view = engine.view(alloc(engine, [2, 3], INT32), 0, 0, [2, 3], INT32)
    line = engine.view(alloc(engine, [1, 6], INT32), 0, 0, [1, 6], INT32)
    get = ctypes.pythonapi.PyObject_GetBuffer
    get.argtypes = [ctypes.py_object, ctypes.POINTER(PyBuffer), ctypes.c_int]
    release = ctypes.pythonapi.PyBuffer_Release
    count = sys.getrefcount(view)
    for flags in (
        SIMPLE,
        WRITABLE,
        FORMAT | ND,
        ND,
        STRIDES,
        C_CONTIGUOUS,
        ANY_CONTIGUOUS,
        INDIRECT,
    ):
        buffer = PyBuffer()
        get(view, buffer, flags)
        assert (buffer.buf, buffer.len, buffer.itemsize) == (view.address, 24, 4)
        assert buffer.format == (b"i" if flags & FORMAT else None)
        assert buffer.ndim == (2 if flags & ND else 1)
        assert (buffer.shape[:2] == [2, 3]) if flags & ND else not buffer.shape
        assert (buffer.strides[:2] == [12, 4]) if flags & STRIDES == STRIDES else not buffer.strides
        assert not buffer.suboffsets
        release(ctypes.byref(buffer))
    with pytest.raises(BufferError, match="Fortran"):
        get(view, PyBuffer(), F_CONTIGUOUS)
    assert sys.getrefcount(view) == count
    buffer = PyBuffer()
    get(line, buffer, F_CONTIGUOUS)
    release(ctypes.byref(buffer))


# ---- View through DLPack ---------------------------------------------------------------------------


class DlTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class DlManaged(ctypes.Structure):
    _fields_ = [("tensor", DlTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class DlVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", DlTensor),
    ]


def inside(capsule):
    """The structure in a DLPack capsule."""
    name = b"dltensor_versioned" if "dltensor_versioned" in repr(capsule) else b"dltensor"
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.argtypes, get.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    cls = DlManaged if name == b"dltensor" else DlVersioned
    return cls.from_address(get(capsule, name))


def consume(capsule):
    """Do what a consumer does: mark the capsule as used and own the structure."""
    managed = inside(capsule)
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    rename(capsule, b"used_dltensor")
    return managed


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize(("data_type", "letter", "numpy_type", "dlpack"), TYPES)
def test_dlpack_describes_the_memory(engine, data_type, letter, numpy_type, dlpack, versioned):
    dims = [2, 3, 1, 4]
    view = engine.view(alloc(engine, dims, data_type), 0, 1, dims, data_type)
    max_version = (1, 0) if versioned else None
    if dlpack is None:
        with pytest.raises(BufferError, match="strings"):
            view.__dlpack__(max_version=max_version)
        return
    capsule = view.__dlpack__(max_version=max_version)
    managed = inside(capsule)
    assert isinstance(managed, DlVersioned if versioned else DlManaged)
    if versioned:
        assert (managed.major, managed.minor, managed.flags) == (1, 0, 0)
    tensor = managed.tensor
    assert (tensor.data, tensor.device_type, tensor.device_id) == (view.address, 1, 0)
    assert (tensor.code, tensor.bits, tensor.lanes) == (*dlpack, 1)
    assert tensor.shape[: tensor.ndim] == dims
    assert tensor.strides[: tensor.ndim] == [12, 4, 4, 1]
    assert tensor.byte_offset == 0


def test_dlpack_arguments(engine):
    view = engine.view(alloc(engine, [4]), 0, 0, [4], UINT8)
    assert view.__dlpack_device__() == (1, 0)
    for version, found in (((0, 8), DlManaged), ((1, 1), DlVersioned), ((2, 0), DlVersioned)):
        assert type(inside(view.__dlpack__(max_version=version))) is found
    view.__dlpack__(stream=None, max_version=None, dl_device=(1, 0), copy=False)
    for bad in ({"copy": True}, {"dl_device": (2, 0)}, {"dl_device": (1, 1)}, {"stream": 1}):
        with pytest.raises(BufferError):
            view.__dlpack__(**bad)
    for bad in ({"dl_device": 1}, {"dl_device": ("cpu", 0)}, {"max_version": 1}, {"copy": "no"}):
        with pytest.raises(TypeError, match="only support"):
            view.__dlpack__(**bad)


@pytest.mark.skipif(not hasattr(numpy, "from_dlpack"), reason="numpy has no from_dlpack")
def test_numpy_takes_dlpack(engine):
    cache = alloc(engine, [2, 3], INT32)
    found = numpy.from_dlpack(engine.view(cache, 0, 0, [2, 3], INT32))
    array(engine, cache, 0, [2, 3], INT32)[1, 2] = 9
    assert found.shape == (2, 3) and found.dtype == numpy.int32 and found[1, 2] == 9


# ---- lifetimes -------------------------------------------------------------------------------------


def used(engine):
    return engine.stats()["pool_used_bytes"]


HOLDERS = {
    "view": lambda view: view,
    "memoryview": memoryview,
    "slice": lambda view: memoryview(view)[1:],
    "array": numpy.asarray,
    "capsule": lambda view: view.__dlpack__(),
    "versioned capsule": lambda view: view.__dlpack__(max_version=(1, 0)),
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_whoever_holds_the_memory_keeps_it_after_free(engine, hold):
    before = used(engine)
    cache = alloc(engine, [4, 1024], tensors=1)
    holder = hold(engine.view(cache, 0, 0, [4, 1024], UINT8))
    engine.cache_free(cache)
    gc.collect()
    assert used(engine) > before
    del holder
    assert used(engine) == before


@pytest.mark.parametrize("versioned", [False, True])
def test_consumer_of_dlpack_may_end_without_the_interpreter_lock(engine, versioned):
    before = used(engine)
    cache = alloc(engine, [4096], tensors=1)
    view = engine.view(cache, 0, 0, [4096], UINT8)
    capsule = view.__dlpack__(max_version=(1, 0) if versioned else None)
    managed = consume(capsule)
    engine.cache_free(cache)
    del view, capsule
    gc.collect()
    assert used(engine) > before
    ctypes.memset(managed.tensor.data, 7, 4096)
    pointer = ctypes.addressof(managed)
    thread = threading.Thread(target=managed.deleter, args=(pointer,))  # ctypes lets go of the lock
    thread.start()
    thread.join(WAIT_S)
    assert used(engine) == before


def test_memory_outlives_stop_and_the_engine():
    engine = _datadist.Engine(1, PROMPT)
    engine.start()
    cache = alloc(engine, [1024, 1024], FLOAT32)
    view = engine.view(cache, 0, 1, [1024, 1024], FLOAT32)
    found = array(engine, cache, 0, [1024, 1024], FLOAT32)
    managed = consume(engine.view(cache, 0, 1, [1024, 1024], FLOAT32).__dlpack__())
    found[:] = 3
    engine.stop()
    found += 1
    del engine
    gc.collect()
    found += 1
    numpy.asarray(view)[:] = 8
    assert found.min() == found.max() == 5
    assert ctypes.cast(managed.tensor.data, ctypes.POINTER(ctypes.c_float))[1024 * 1024 - 1] == 8
    del view
    assert ctypes.cast(managed.tensor.data, ctypes.POINTER(ctypes.c_float))[0] == 8
    managed.deleter(ctypes.addressof(managed))


def test_interpreter_ends_in_any_order():
    """Objects, buffers and consumed capsules that are alive when the interpreter ends."""
    out = run_python(
        "import ctypes, sys\n"
        "engine = _datadist.Engine(1, 1)\n"
        "engine.set('datadist.listen', '127.0.0.1:0')\n"
        "engine.start()\n"
        "cache = engine.cache_alloc(1, [64], 4, 0, [])\n"
        "view = engine.view(cache, 0, 0, [64], 4)\n"
        "shown = memoryview(view)\n"
        "capsule = view.__dlpack__()\n"
        "sys.view, sys.engine = view, engine\n"
        "ctypes.pythonapi.Py_IncRef(ctypes.py_object(shown))\n"
        "print('end')\n"
    )
    assert out == "end\n"


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_forked_child_ends():
    """It has the engine but not its threads, which nobody must wait for."""
    out = run_python(
        "import os, sys\n"
        "engine = _datadist.Engine(1, 1)\n"
        "engine.set('datadist.listen', '127.0.0.1:0')\n"
        "engine.start()\n"
        "view = engine.view(engine.cache_alloc(1, [64], 4, 0, []), 0, 0, [64], 4)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    del view, engine\n"
        "    sys.exit(0)\n"
        "print(os.waitpid(pid, 0)[1], engine.stats()['caches'], memoryview(view).nbytes)\n"
    )
    assert out == "0 1 64\n"


# ---- TensorBase ------------------------------------------------------------------------------------


class Tensor(_datadist.TensorBase):
    pass


def test_tensor_shows_the_buffer_of_its_view(engine):
    tensor = Tensor()
    assert tensor._view is None
    for nothing in (None, 5, "text"):
        tensor._view = nothing
        with pytest.raises((BufferError, TypeError)):
            memoryview(tensor)
    tensor._view = None
    with pytest.raises(BufferError, match="no memory"):
        memoryview(tensor)

    cache = alloc(engine, [2, 3], INT32)
    tensor._view = engine.view(cache, 0, 0, [2, 3], INT32)
    tensor.attribute = 1
    shown = memoryview(tensor)
    assert (shown.shape, shown.format, shown.readonly) == ((2, 3), "i", False)
    numpy.asarray(tensor)[1, 1] = 4
    assert array(engine, cache, 0, [2, 3], INT32)[1, 1] == 4
    tensor._view = bytearray(b"abc")  # while a buffer is out
    assert shown.shape == (2, 3) and bytes(tensor) == b"abc"
    with memoryview(tensor), pytest.raises(BufferError):
        tensor._view.append(4)  # the array knows that it is shown
    tensor._view.append(4)
    del tensor._view
    with pytest.raises(BufferError):
        memoryview(tensor)


def test_tensor_that_leads_to_itself_raises():
    tensor = Tensor()
    tensor._view = tensor
    with pytest.raises(RecursionError):
        memoryview(tensor)


def test_tensor_in_a_cycle_is_collected():
    for cls in (Tensor, type("WithSlots", (_datadist.TensorBase,), {"__slots__": "__weakref__"})):
        tensor = cls()
        tensor._view = [tensor]
        gone = weakref.ref(tensor)
        del tensor
        gc.collect()
        assert gone() is None


# ---- the interpreter lock --------------------------------------------------------------------------


class Call(threading.Thread):
    """A call in a thread of its own."""

    def __init__(self, call, *args):
        super().__init__(daemon=True)
        self._call = call, args
        self.answer = None
        self.start()

    def run(self):
        call, args = self._call
        try:
            self.answer = call(*args)
        except _datadist.Error as error:
            self.answer = error

    def result(self):
        self.join(WAIT_S)
        assert not self.is_alive()
        return self.answer


@pytest.fixture
def silent():
    """A listener that says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(WAIT_S)
        yield listener


def address_of(listener):
    return f"127.0.0.1:{listener.getsockname()[1]}"


def test_other_threads_run_while_a_call_waits(engine, silent):
    call = Call(engine.link_open, [(5, address_of(silent), None)], 1000 * WAIT_S)
    connection, _ = silent.accept()  # the call has connected and waits for an answer
    with connection:
        for _ in range(1000):
            engine.stats()
            alloc(engine, [4])
        assert call.is_alive()  # all of that happened inside the call
    status, results, _ = call.result()  # the connection was closed
    assert (status, results) == (LINK_FAILED, [LINK_FAILED])


def test_waiting_call_ends_at_its_timeout(engine, silent):
    target = [(5, address_of(silent), None)]
    assert engine.link_open(target, 50)[:2] == (TIMEOUT, [TIMEOUT])


def test_stop_ends_a_waiting_call(engine, silent):
    call = Call(engine.link_open, [(5, address_of(silent), None)], 1000 * WAIT_S)
    connection, _ = silent.accept()
    with connection:
        engine.stop()
        assert call.result()[0] == FINALIZED


def test_engine_lives_until_its_last_call_has_returned(silent):
    engine = _datadist.Engine(1, PROMPT)
    engine.start()
    call = Call(engine.link_open, [(5, address_of(silent), None)], 1000 * WAIT_S)
    connection, _ = silent.accept()
    del engine
    gc.collect()
    assert call.is_alive()
    connection.close()
    assert call.result()[0] == LINK_FAILED


def test_many_threads_pull_at_once(pair):
    prompt, decoder = pair
    blocks = 64
    source = alloc(prompt, [blocks, 256], keys=[(BLOCKS, 0, 0)])
    for tensor in range(2):
        array(prompt, source, tensor, [blocks, 256])[:] = numpy.arange(blocks)[:, None] + tensor
    targets = [alloc(decoder, [blocks, 256]) for _ in range(8)]
    order = list(range(blocks))

    def pull_all(target):
        for _ in range(20):
            decoder.pull_blocks(1, (BLOCKS, 0, 0), target, order[::-1], order)

    calls = [Call(pull_all, target) for target in targets]
    assert [call.result() for call in calls] == [None] * 8
    for target in targets:
        found = array(decoder, target, 1, [blocks, 256])
        assert (found == (numpy.arange(blocks)[::-1] + 1)[:, None]).all()


# ---- leaks -----------------------------------------------------------------------------------------

LOOPS = 10_000


class MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def allocated():
    """Bytes that C code has allocated, or without glibc 2.33 the resident ones, a coarse measure."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    ask.restype = MallInfo
    found = ask()
    return found.uordblks + found.hblkhd


def leaks_nothing(step, loops=LOOPS):
    """Run `step` often and see that neither Python's blocks nor the memory of C code grow.

    What leaks grows in every round; caches and arenas of allocators grow once, in any of them.
    """
    grown_blocks, grown_bytes = [], []
    for _ in range(4):
        gc.collect()
        blocks, memory = sys.getallocatedblocks(), allocated()
        for _ in range(loops):
            step()
        gc.collect()
        grown_blocks.append(sys.getallocatedblocks() - blocks)
        grown_bytes.append(allocated() - memory)
    assert min(grown_blocks) < loops / 10, grown_blocks
    assert min(grown_bytes) < 8 * loops, grown_bytes  # malloc's smallest block has 32 bytes


def refused_calls(engine):
    """Calls that fail in different places of the conversion."""
    long = list(range(300))
    bad = [
        ("set", ("datadist.listen", 5)),
        ("set", ("nonsense", "text")),
        ("link_open", ([(9, "nonsense", "local"), (9, "127.0.0.1:1", 5)], 100)),
        ("link_open", ([(9, "nonsense", None), (10, "other", "127.0.0.1")], 100)),
        ("link_close", ([(9, "127.0.0.1:1")], 2**32, True)),
        ("cache_alloc", (2, [*long, None], UINT8, HOST, [])),
        ("cache_alloc", (2, [4], UINT8, HOST, [(1, 2, 3)] * 50 + [None])),
        ("cache_alloc", (0, [4], UINT8, HOST, [(1, 2, 3)] * 50)),
        ("cache_addresses", (99, 0, 500)),
        ("key_remove", (-1, 0, 0)),
        ("pull", (9, (REQUEST, 7, 0), 99)),
        ("pull", (9, (REQUEST, 7), 99)),
        ("pull_blocks", (9, (BLOCKS, 0, 0), 99, long, [*long[1:], -1])),
        ("pull_blocks", (9, (BLOCKS, 0, 0), 99, long, long[1:])),
        ("pull_blocks", (9, (BLOCKS, 0, 0), 99, long, long)),
        ("view", (99, 0, 0, [4], UINT8)),
    ]
    for method, args in bad:
        with contextlib.suppress(_datadist.Error, TypeError, ValueError):
            getattr(engine, method)(*args)


def test_refused_calls_leak_nothing(engine):
    leaks_nothing(lambda: refused_calls(engine))


def test_arguments_keep_their_reference_counts(engine):
    shared = object()
    address = "".join(["127.0.0.1", ":1"])
    numbers = [2**40 + i for i in range(3)]
    key = (REQUEST, 2**41, 2**42)
    watched = [shared, address, key, *numbers, *key[1:]]
    before = [sys.getrefcount(item) for item in watched]
    for _ in range(100):
        engine.link_open([(numbers[0], address, None)], 0)
        for bad in (shared, [shared], [numbers[0], shared], (shared,)):
            with pytest.raises(TypeError):
                engine.pull_blocks(1, key, 99, bad, numbers)
        accepts(engine.pull_blocks, 1, key, 99, numbers, numbers)
        accepts(engine.pull, 1, key, 99, bytes=numbers[1])
        accepts(engine.cache_alloc, 1, numbers, UINT8, HOST, [key])
    del bad
    assert [sys.getrefcount(item) for item in watched] == before


def test_none_and_types_keep_their_reference_counts(engine):
    cache = alloc(engine, [4])
    watched = [
        None,
        *(getattr(_datadist, name) for name in "Engine View TensorBase".split()),
        Tensor,
    ]
    before = [sys.getrefcount(item) for item in watched]
    for _ in range(1000):
        engine.key_remove(REQUEST, 1, 0)
        engine.view(cache, 0, 0, [4], UINT8)
        _datadist.Engine(1, PROMPT).stop()
        _datadist.TensorBase()
        Tensor()
    gc.collect()
    after = [sys.getrefcount(item) for item in watched]
    assert max(abs(b - a) for a, b in zip(before, after)) < 100, (before, after)


def test_caches_and_views_leak_nothing(engine):
    def step():
        cache = alloc(engine, [4, 4], keys=[(REQUEST, 1, 0), (PREFIX, 2, 0)])
        engine.cache_addresses(cache, 0, 2)
        view = engine.view(cache, 0, 0, [4, 4], UINT8)
        with memoryview(view) as shown:
            shown[0, 0] = 1
        view.__dlpack__()
        view.__dlpack__(max_version=(1, 0))
        numpy.asarray(view)
        with contextlib.suppress(BufferError):
            view.__dlpack__(copy=True)
        with contextlib.suppress(ValueError):
            engine.view(cache, 0, 0, [4, 5], UINT8)
        with contextlib.suppress(ValueError):
            engine.view(cache, 0, 0, [4, 4], 99)
        tensor = Tensor()
        tensor._view = view
        memoryview(tensor)
        engine.stats(), engine.address(), view.shape
        engine.cache_free(cache)
        engine.key_remove(REQUEST, 1, 0)
        engine.key_remove(PREFIX, 2, 0)

    leaks_nothing(step)
    assert engine.stats()["caches"] == 0 and used(engine) == 0


def test_pulls_leak_nothing(pair):
    prompt, decoder = pair
    source = alloc(prompt, [4, 64], keys=[(PREFIX, 1, 0)])
    target = alloc(decoder, [4, 64])

    def step():
        decoder.pull(1, (PREFIX, 1, 0), target, dst_batch=1)
        decoder.pull_blocks(1, None, target, [0, 1], [2, 3], src_cache=source)

    leaks_nothing(step)


def test_engines_leak_nothing():
    def step():
        _datadist.Engine(1, PROMPT).set("datadist.workers", "1")
        with contextlib.suppress(_datadist.Error):
            _datadist.Engine(1, 9)

    leaks_nothing(step)


def test_modules_leak_nothing():
    def step():
        module = load_again()
        module.Engine(1, PROMPT)
        del module
        gc.collect(0)

    leaks_nothing(step, 200)
