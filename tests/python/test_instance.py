"""LLMDataDist in one process: construction, init and finalize, exit, fork, argument checks."""

import gc
import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from test_rig import cluster, desc, options, refused

from llm_datadist import (
    CacheKey,
    KvCacheManager,
    LLMClusterInfo,
    LLMConfig,
    LLMDataDist,
    LLMException,
    LLMRole,
    LLMStatusCode,
)
from llm_datadist.v2.llm_datadist import _shutdown_handler

PROMPT, DECODER, MIX = LLMRole.PROMPT, LLMRole.DECODER, LLMRole.MIX
NOT_INITIALIZED = "llm datadist is not initialized"


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    _shutdown_handler()
    assert LLMDataDist.llm_engine_instance is None


def started(role=DECODER, cluster_id=2, **more):
    dist = LLMDataDist(role, cluster_id)
    dist.init(options("127.0.0.1:0" if role is PROMPT else None, **more))
    return dist


# ---- construction ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((1, 1), TypeError),
        (("PROMPT", 1), TypeError),
        ((None, 1), TypeError),
        ((PROMPT, "1"), TypeError),
        ((PROMPT, None), TypeError),
        ((PROMPT, -1), ValueError),
        ((PROMPT, 2**64), ValueError),
    ],
)
def test_bad_constructor_arguments_are_refused(args, error):
    with pytest.raises(error):
        LLMDataDist(*args)


@pytest.mark.parametrize("cluster_id", [0, 2**63, 2**64 - 1])
def test_cluster_id_over_its_whole_range(cluster_id):
    dist = LLMDataDist(PROMPT, cluster_id)
    assert dist.cluster_id == cluster_id
    dist.init(options())
    assert dist.cluster_id == cluster_id
    with pytest.raises(AttributeError):
        dist.cluster_id = 1


def test_role_texts():
    assert [LLMDataDist._role_to_str(role) for role in LLMRole] == ["Prompt", "Decoder", "Mix"]


# ---- init and finalize -------------------------------------------------------------------------


def test_a_life():
    dist = LLMDataDist(PROMPT, 1)
    dist.finalize()
    config = LLMConfig()
    config.device_id = 0
    config.listen_ip_info = "127.0.0.1:0"
    config.sync_kv_timeout = "3000"
    config.ge_options = {"ge.exec.rankId": "1"}
    found = config.generate_options()
    dist.init(found)
    assert found["llm.Role"] == "Prompt"
    assert LLMDataDist.llm_engine_instance is dist
    manager = dist.kv_cache_manager
    assert isinstance(manager, KvCacheManager)
    assert manager is dist.kv_cache_manager
    assert manager.is_initialized()
    address = dist.listen_address
    dist.init({"nonsense": 1})  # initialized already: options are not looked at
    assert dist.kv_cache_manager is manager
    assert dist.listen_address == address
    dist.finalize()
    dist.finalize()
    assert not manager.is_initialized()
    assert LLMDataDist.llm_engine_instance is None
    assert dist.listen_address == ""
    other = started()
    assert LLMDataDist.llm_engine_instance is other


def test_a_second_instance_is_refused_until_the_first_is_finalized():
    first = started()
    second = LLMDataDist(DECODER, 3)
    with refused(LLMException, "finalize it first", "LLM_FAILED"):
        second.init(options(None))
    with refused(LLMException, "finalize it first", "LLM_FAILED"):
        second.init(None)
    first.finalize()
    second.init(options(None))


def test_many_lives_with_one_dict_and_one_port():
    dist = LLMDataDist(PROMPT, 1)
    dist.init(options())
    port = dist.listen_address
    dist.finalize()
    found = options(port)
    for _ in range(20):
        dist.init(found)
        assert dist.listen_address == port
        assert dist.kv_cache_manager.allocate_cache(desc(1, [1])).cache_id == 1
        dist.finalize()


@pytest.mark.parametrize("role", list(LLMRole))
def test_port_zero_is_read_back_and_open(role):
    dist = started(role)
    if role is not PROMPT:
        assert dist.listen_address == ""
        return
    host, port = dist.listen_address.split(":")
    assert int(port) > 0
    with socket.create_connection((host, int(port)), timeout=5):
        pass


def test_a_taken_port_is_named_with_its_option():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with refused(LLMException, f"127.0.0.1:{port}", "LLM_FAILED") as caught:
            LLMDataDist(PROMPT, 1).init(options(f"127.0.0.1:{port}"))
        assert "listen" in str(caught.value)
    assert LLMDataDist.llm_engine_instance is None
    LLMDataDist(PROMPT, 1).init(options(f"127.0.0.1:{port}"))


def test_ipv6_listener():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this host")
    dist = LLMDataDist(PROMPT, 1)
    dist.init(options("[::1]:0"))
    assert re.fullmatch(r"\[::1\]:\d+", dist.listen_address)


def test_a_huge_limit_costs_nothing():
    dist = started(**{"ge.flowGraphMemMaxSize": str(2**40), "llm.MemoryUtilization": "1.0"})
    assert dist._llm_datadist.call("stats", "stats")["pool_limit_bytes"] == 2**40
    dist.kv_cache_manager.allocate_cache(desc(1, [1]))


def test_exceeded_limit_is_out_of_memory():
    dist = started(**{"ge.flowGraphMemMaxSize": "10240"})
    manager = dist.kv_cache_manager
    with refused(LLMException, None, "LLM_DEVICE_OUT_OF_MEMORY"):
        manager.allocate_cache(desc(80, [2, 1 << 18]))
    cache = manager.allocate_cache(desc(1, [8192]))
    with refused(LLMException, None, "LLM_DEVICE_OUT_OF_MEMORY"):
        manager.allocate_cache(desc(1, [8192]))
    manager.deallocate_cache(cache)
    manager.allocate_cache(desc(1, [8192]))


def test_no_memory_at_all():
    manager = started(**{"ge.flowGraphMemMaxSize": "0"}).kv_cache_manager
    with refused(LLMException, None, "LLM_DEVICE_OUT_OF_MEMORY"):
        manager.allocate_cache(desc(1, [1]))


# ---- after the end -----------------------------------------------------------------------------


def test_before_init_and_after_finalize_methods_say_so():
    dist = LLMDataDist(DECODER, 1)
    for _ in range(2):
        for use in (
            lambda: dist.kv_cache_manager,
            lambda: dist.cache_manager,
            lambda: dist.link_clusters([]),
            lambda: dist.unlink_clusters([]),
            lambda: dist.check_link_status(1),
        ):
            with pytest.raises(RuntimeError, match=NOT_INITIALIZED) as caught:
                use()
            assert not isinstance(caught.value, LLMException)
        dist.init(options(None))
        dist.finalize()


def test_what_was_kept_from_a_life_does_no_harm_after_it():
    dist = started(PROMPT)
    manager = dist.kv_cache_manager
    cache = manager.allocate_cache(desc(2, [2, 8]), [CacheKey(1, 1)])
    dist.finalize()
    assert cache.per_device_tensor_addrs == []
    assert (cache.cache_id, cache.cache_desc.num_tensors) == (1, 2)
    finalized = "LLM_ENGINE_FINALIZED"
    with refused(LLMException, None, finalized):
        manager.allocate_cache(desc(1, [1]))
    with refused(LLMException, None, finalized):
        manager.allocate_blocks_cache(desc(1, [1]))
    with refused(LLMException, None, finalized):
        manager.get_cache_tensors(cache)
    with refused(LLMException, None, finalized):
        manager.remove_cache_key(CacheKey(1, 1))
    with refused(LLMException, None, finalized):
        manager.deallocate_cache(cache)


def test_a_handle_of_an_earlier_life_touches_no_cache_of_this_one():
    dist = started()
    old = dist.kv_cache_manager.allocate_cache(desc(1, [8]))
    dist.finalize()
    dist.init(options(None))
    manager = dist.kv_cache_manager
    new = manager.allocate_cache(desc(1, [8]))
    assert new.cache_id == old.cache_id
    with refused(LLMException, None, "LLM_KV_CACHE_NOT_EXIST"):
        manager.get_cache_tensors(old)
    manager.deallocate_cache(old)
    del old
    gc.collect()
    assert memoryview(manager.get_cache_tensors(new)[0]).nbytes == 8


# ---- the manager of the other mode -------------------------------------------------------------


def test_cache_manager_is_refused_in_classic_mode():
    dist = started()
    with refused(LLMException, "classic mode"):
        _ = dist.cache_manager


# ---- argument checks of links ------------------------------------------------------------------


@pytest.mark.parametrize("call", ["link_clusters", "unlink_clusters"])
@pytest.mark.parametrize(
    ("args", "error"),
    [
        (([], 0), LLMException),
        (([], -1), LLMException),
        (([], 2**31), ValueError),
        (([], "1"), TypeError),
        (([], None), TypeError),
        (("not_list", 1), TypeError),
        ((None, 1), TypeError),
        (([1], 1), TypeError),
        (([None], 1), TypeError),
        (([LLMClusterInfo(), "x"], 1), TypeError),
        (("not_list", 0), LLMException),  # the time-out is looked at first
    ],
)
def test_bad_arguments_of_links_are_refused(call, args, error):
    with refused(error):
        getattr(started(), call)(*args)


@pytest.mark.parametrize("force", ["not_bool", 1])
def test_force_is_a_bool(force):
    dist = started()
    with pytest.raises(TypeError, match="force only support"):
        dist.unlink_clusters([cluster(1, "127.0.0.1:1")], 100, force)


def test_unlinked_clusters():
    dist = started()
    for force in (False, True, None):
        found = dist.unlink_clusters((cluster(1, "127.0.0.1:1"),), 100, force)
        assert found == (LLMStatusCode.LLM_SUCCESS, [LLMStatusCode.LLM_NOT_YET_LINK])
    with refused(LLMException, None, "LLM_NOT_YET_LINK"):
        dist.check_link_status(1)


@pytest.mark.parametrize("role", [PROMPT, MIX])
def test_roles_that_do_not_check_links(role):
    with refused(LLMException, str(role)):
        started(role).check_link_status(1)


# ---- exit and fork -----------------------------------------------------------------------------


def test_shutdown_handler_may_be_called_any_time():
    _shutdown_handler()
    dist = started()
    _shutdown_handler()
    assert LLMDataDist.llm_engine_instance is None
    _shutdown_handler()
    dist.finalize()


def test_shutdown_handler_survives_an_engine_that_is_gone():
    dist = started()
    dist._llm_datadist.stop()
    _shutdown_handler()


CODE = """
import os, sys, threading
from llm_datadist import *
dist = LLMDataDist(LLMRole.PROMPT, 1)
dist.init({"ge.exec.deviceId": "0", "llm.listenIpInfo": "127.0.0.1:0"})
cache = dist.kv_cache_manager.allocate_cache(
    CacheDesc(1, [8], DataType.DT_INT8), [CacheKey(1, 1)])
tensor = dist.kv_cache_manager.get_cache_tensors(cache)[0]
"""


def run(code):
    """Run code after CODE in an interpreter of its own; nothing of it, forks included, is left."""
    process = subprocess.Popen(
        [sys.executable, "-c", CODE + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.parametrize(
    "end",
    [
        "",
        "sys.exit(0)",
        "del dist",
        "cache.loop = cache; sys.modules['kept'] = (cache, tensor)",
        "del cache, tensor",
        "dist.finalize()",
        "del LLMDataDist, dist; memory = memoryview(tensor)",
    ],
)
def test_interpreter_ends_quietly(end):
    done = run(end)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


FORK = """
child = os.fork()
if child == 0:
    try:
        {child}
        print("child is well", flush=True)
    finally:
        sys.stdout.flush()
        {end}
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert dist.kv_cache_manager.is_initialized() and len(cache.per_device_tensor_addrs) == 1
"""


@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)"])
def test_forked_child_gets_an_error_and_may_start_anew(end):
    child = """
        assert not cache._manager.is_initialized()
        assert cache.per_device_tensor_addrs == []
        try:
            cache._manager.allocate_cache(CacheDesc(1, [8], DataType.DT_INT8))
        except LLMException as error:
            assert error.status_code == LLMStatusCode.LLM_ENGINE_FINALIZED, error
            assert "forked child" in str(error)
        assert LLMDataDist.llm_engine_instance is None
        del cache, tensor
        other = LLMDataDist(LLMRole.DECODER, 2)
        other.init({"ge.exec.deviceId": "0"})
        other.finalize()
    """.strip()
    done = run(FORK.format(child=child, end=end))
    assert done.stdout == "child is well\n0\n", done.stderr
    assert done.returncode == 0
