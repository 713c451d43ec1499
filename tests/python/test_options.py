"""What the options of `init` come to: mode, devices, options of the engine, refusals."""

import json

import pytest
from test_rig import options, refused

from llm_datadist import LLMDataDist, LLMException, LLMRole, _options

PROMPT, DECODER, MIX = LLMRole.PROMPT, LLMRole.DECODER, LLMRole.MIX
MIB = 1024 * 1024
BUFFERS = {"total_size": 8 * MIB, "blk_size": 256, "max_buf_size": MIB}


def read(role=PROMPT, **found):
    return _options.read(role, 7, found)


def with_devices(**more):
    return _options.read(PROMPT, 7, options(**more))


# ---- translation -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "engine"),
    [
        ({}, {}),
        ({"llm.SyncKvCacheWaitTime": "5000"}, {"datadist.sync_timeout_ms": "5000"}),
        ({"llm.SyncKvCacheWaitTime": "0005"}, {"datadist.sync_timeout_ms": "5"}),
        ({"llm.MemoryUtilization": "0.5"}, {"datadist.pool_fraction": "0.5"}),
        ({"ge.flowGraphMemMaxSize": "1000"}, {"datadist.pool_bytes": "950"}),
        (
            {"ge.flowGraphMemMaxSize": "1000", "llm.MemoryUtilization": "0.5"},
            {"datadist.pool_bytes": "500"},
        ),
        (
            {"ge.flowGraphMemMaxSize": str(2**62), "llm.MemoryUtilization": "1.0"},
            {"datadist.pool_bytes": str(2**62)},
        ),
        ({"ge.flowGraphMemMaxSize": "0"}, {"datadist.pool_bytes": "1"}),
        ({"datadist.workers": "1"}, {"datadist.workers": "1"}),
        (
            {"llm.SyncKvCacheWaitTime": "5000", "datadist.sync_timeout_ms": "7"},
            {"datadist.sync_timeout_ms": "7"},
        ),
        ({"datadist.listen": "127.0.0.1:9"}, {"datadist.listen": "127.0.0.1:9"}),
        ({"llm.RdmaTrafficClass": "100", "ge.session_device_id": "0"}, {}),
    ],
)
def test_options_of_the_engine(given, engine):
    settings = with_devices(**given)
    assert not settings.is_cache_manager
    assert settings.engine == {"datadist.listen": "127.0.0.1:0", **engine}


@pytest.mark.parametrize(
    ("text", "listen", "kept"),
    [
        ("127.0.0.1:26000", "127.0.0.1:26000", 0x0100007F),
        ("127.1:0", "127.0.0.1:0", 0x0100007F),
        ("0.0.0.0:1", "0.0.0.0:1", 0),
        ("[::1]:26000", "[::1]:26000", "::1"),
        ("[fe80::1%lo]:5", "[fe80::1%lo]:5", "fe80::1%lo"),
        ("[::ffff:1.2.3.4]:5", "[::ffff:1.2.3.4]:5", "::ffff:1.2.3.4"),
    ],
)
def test_listening_address(text, listen, kept):
    found = options(listen=text)
    assert _options.read(PROMPT, 7, found).engine["datadist.listen"] == listen
    info = json.loads(found["llm.ClusterInfo"])
    assert info["listen_ip_info"] == [{"ip": kept, "port": int(text.rpartition(":")[2])}]


@pytest.mark.parametrize("role", [DECODER, MIX])
def test_only_a_prompt_listens(role):
    found = options(listen="127.0.0.1:26000")
    assert "datadist.listen" not in _options.read(role, 7, found).engine
    assert "listen_ip_info" not in json.loads(found["llm.ClusterInfo"])
    assert found["llm.Role"] == {DECODER: "Decoder", MIX: "Mix"}[role]


def test_what_is_written_into_the_dict():
    found = {"ge.exec.deviceId": "4;5", "llm.listenIpInfo": "1.2.3.4:1;1.2.3.4:2"}
    settings = _options.read(PROMPT, 7, found)
    assert settings.device_count == 2
    assert found["llm.Role"] == "Prompt"
    assert json.loads(found["llm.ClusterInfo"]) == {
        "cluster_id": 7,
        "logic_device_id": ["0:0:0:0", "0:0:1:0"],
        "listen_ip_info": [{"ip": 67305985, "port": 1}, {"ip": 67305985, "port": 2}],
    }


def test_a_used_dict_may_be_edited_and_used_again():
    found = options(listen="127.0.0.1:1")
    _options.read(PROMPT, 7, found)
    found["llm.listenIpInfo"] = "127.0.0.1:2"
    assert _options.read(PROMPT, 8, found).engine["datadist.listen"] == "127.0.0.1:2"
    assert json.loads(found["llm.ClusterInfo"])["cluster_id"] == 8


def test_given_cluster_info_stands_for_the_single_options(capsys):
    text = json.dumps(
        {
            "cluster_id": 7,
            "logic_device_id": ["0:0:0:0"],
            "listen_ip_info": [{"ip": 0x0100007F, "port": 9}],
        }
    )
    found = {"llm.ClusterInfo": text}
    settings = _options.read(PROMPT, 7, found)
    assert settings.engine == {"datadist.listen": "127.0.0.1:9"}
    assert found == {"llm.ClusterInfo": text, "llm.Role": "Prompt"}
    assert _options.read(DECODER, 7, found).engine == {}
    assert capsys.readouterr().out == ""
    devices = json.dumps({"logic_device_id": ["a", "b", "c", "d"]})
    assert read(**{"llm.ClusterInfo": devices}).device_count == 4


# ---- modes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "is_cache_manager"),
    [
        ({}, False),
        ({"llm.EnableCacheManager": "1"}, True),
        ({"llm.EnableCacheManager": "0"}, False),
        ({"llm.EnableCacheManager": "true"}, False),
        ({"llm.LocalCommRes": ""}, True),
        ({"llm.LocalCommRes": "", "llm.EnableCacheManager": "1"}, True),
        ({"llm.LocalCommRes": "", "llm.TransferBackend": "hixl"}, True),
        ({"llm.EnableCacheManager": "1", "llm.TransferBackend": "hixl"}, True),
    ],
)
def test_mode(given, is_cache_manager):
    found = options(**given)
    before = dict(found)
    assert _options.read(PROMPT, 7, found).is_cache_manager is is_cache_manager
    assert (found == before) is is_cache_manager


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"llm.LocalCommRes": "", "llm.EnableCacheManager": "0"}, "EnableCacheManager"),
        ({"llm.TransferBackend": "hixl"}, "EnableCacheManager"),
        ({"llm.TransferBackend": "hixl", "llm.EnableCacheManager": "0"}, "EnableCacheManager"),
        (
            {
                "llm.TransferBackend": "hixl",
                "llm.EnableCacheManager": "1",
                "llm.EnableRemoteCacheAccessible": "0",
            },
            "EnableRemoteCacheAccessible",
        ),
        ({"llm.TransferBackend": "other", "llm.EnableCacheManager": "1"}, "hixl"),
    ],
)
def test_modes_that_do_not_go_together(given, text):
    with refused(LLMException, text):
        with_devices(**given)


def test_backend_needs_a_listening_address():
    with refused(LLMException, "listenIpInfo"):
        read(**{"llm.TransferBackend": "hixl", "llm.EnableCacheManager": "1"})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (options(**{"llm.EnableCacheManager": "1"}), "cache manager mode"),
        ({"llm.LocalCommRes": ""}, "cache manager mode"),
        (
            {"ge.exec.deviceId": "0;1", "llm.listenIpInfo": "127.0.0.1:1;127.0.0.1:2"},
            "2 devices",
        ),
        ({"llm.ClusterInfo": '{"logic_device_id": ["a", "b"]}'}, "2 devices"),
    ],
)
def test_what_is_not_there_yet_is_refused_by_init(given, text):
    dist = LLMDataDist(PROMPT, 1)
    with refused(LLMException, text, "LLM_FEATURE_NOT_ENABLED"):
        dist.init(dict(given))
    assert LLMDataDist.llm_engine_instance is None
    with pytest.raises(RuntimeError, match="llm datadist is not initialized"):
        _ = dist.kv_cache_manager


# ---- refusals ----------------------------------------------------------------------------------

POOL = '{"memory_size": %s, "page_shift": %s}'


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("llm.SyncKvCacheWaitTime", "abc"),
        ("llm.SyncKvCacheWaitTime", "0"),
        ("llm.SyncKvCacheWaitTime", "-1"),
        ("llm.SyncKvCacheWaitTime", "1.5"),
        ("llm.SyncKvCacheWaitTime", str(2**31)),
        ("ge.flowGraphMemMaxSize", "-1"),
        ("ge.flowGraphMemMaxSize", "1.23"),
        ("ge.flowGraphMemMaxSize", "1024,2048"),
        ("ge.flowGraphMemMaxSize", ""),
        ("ge.flowGraphMemMaxSize", str(2**63)),
        ("llm.MemoryUtilization", "1.5"),
        ("llm.MemoryUtilization", "-0.1"),
        ("llm.MemoryUtilization", "x"),
        ("llm.MemoryUtilization", "nan"),
        ("ge.exec.deviceId", "-1"),
        ("ge.exec.deviceId", "0;x"),
        ("ge.exec.deviceId", ""),
        ("llm.EnableSwitchRole", "2"),
        ("llm.EnableRemoteCacheAccessible", "true"),
        ("llm.RdmaTrafficClass", "x"),
        ("llm.RdmaServiceLevel", str(2**32)),
        ("llm.LinkTotalTime", "-1"),
        ("llm.LinkRetryCount", "0"),
        ("llm.LinkRetryCount", "101"),
        ("llm.MemPoolConfig", "{"),
        ("llm.MemPoolConfig", "[]"),
        ("llm.MemPoolConfig", "{}"),
        ("llm.MemPoolConfig", POOL % ("0", "16")),
        ("llm.MemPoolConfig", POOL % ("-1", "16")),
        ("llm.MemPoolConfig", POOL % ("1.5", "16")),
        ("llm.MemPoolConfig", POOL % ("true", "16")),
        ("llm.HostMemPoolConfig", POOL % ("1", "9")),
        ("llm.HostMemPoolConfig", POOL % ("1", "31")),
        ("llm.HostMemPoolConfig", POOL % ("1", '"16"')),
        ("llm.HostMemPoolConfig", POOL % (2**42, "10")),
        ("llm.ClusterInfo", "{"),
        ("llm.ClusterInfo", "[]"),
        ("llm.ClusterInfo", '{"logic_device_id": []}'),
        ("llm.ClusterInfo", '{"logic_device_id": "0"}'),
        ("llm.ClusterInfo", '{"listen_ip_info": [1]}'),
        ("llm.ClusterInfo", '{"listen_ip_info": [{"ip": 1}]}'),
        ("llm.ClusterInfo", '{"listen_ip_info": [{"ip": -1, "port": 1}]}'),
        ("llm.ClusterInfo", '{"listen_ip_info": [{"ip": 1, "port": 65536}]}'),
        ("llm.listenIpInfo", "127.0.0.1"),
        ("llm.listenIpInfo", "1:2:3"),
        ("llm.listenIpInfo", "127.0.0.1:1;"),
        ("llm.listenIpInfo", "127.0.0.1:1;127.0.0.1:2"),
        ("llm.listenIpInfo", "127.0.0.1:65536"),
        ("llm.listenIpInfo", ""),
    ],
)
def test_bad_value_is_refused_with_its_option(name, value):
    with refused(LLMException) as caught:
        with_devices(**{name: value})
    assert name in str(caught.value)
    assert repr(value) in str(caught.value) or value in str(caught.value)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("localhost:26000", RuntimeError),
        ("1.2.3.4 junk:1", RuntimeError),
        ("127.0.0.1:x", ValueError),
        ("127.0.0.1:", ValueError),
    ],
)
def test_bad_listening_address_is_refused_with_its_option(value, error):
    for role in LLMRole:
        with pytest.raises(error, match=r"llm\.listenIpInfo") as caught:
            _options.read(role, 7, options(listen=value))
        assert value in str(caught.value)
        assert not isinstance(caught.value, LLMException)


@pytest.mark.parametrize(
    "changes",
    [
        {"total_size": MIB},
        {"total_size": 2**32},
        {"total_size": "8"},
        {"blk_size": 0},
        {"blk_size": 3},
        {"blk_size": 4 * MIB, "max_buf_size": 4 * MIB},
        {"blk_size": 2 * MIB},
        {"max_buf_size": 8 * MIB},
        {"max_buf_size": None},
    ],
)
def test_bad_size_class_is_refused(changes):
    with refused(LLMException, r"llm\.BufPoolCfg"):
        with_devices(**{"llm.BufPoolCfg": json.dumps({"buf_cfg": [{**BUFFERS, **changes}]})})


def test_size_classes():
    larger = {**BUFFERS, "max_buf_size": 2 * MIB}
    good = {"buf_cfg": [BUFFERS, larger], "buf_pool_size": 5}
    with_devices(**{"llm.BufPoolCfg": json.dumps(good)})
    for bad in ({}, {"buf_cfg": {}}, {"buf_cfg": [1]}, {"buf_cfg": [larger, BUFFERS]}):
        with refused(LLMException, r"llm\.BufPoolCfg"):
            with_devices(**{"llm.BufPoolCfg": json.dumps(bad)})


def test_pools_are_checked_though_classic_mode_has_none():
    with_devices(**{"llm.MemPoolConfig": POOL % (102428800, 16)})
    with_devices(**{"llm.MemPoolConfig": '{"memory_size": 18737418240}'})


@pytest.mark.parametrize(
    ("role", "given", "text"),
    [
        (PROMPT, {}, "ge.exec.deviceId"),
        (DECODER, {}, "ge.exec.deviceId"),
        (PROMPT, {"ge.exec.deviceId": "0"}, "llm.listenIpInfo"),
        (PROMPT, {"ge.exec.deviceId": "0", "llm.listenIpInfo": ""}, "llm.listenIpInfo"),
        (
            PROMPT,
            {"ge.exec.deviceId": "0;1", "llm.listenIpInfo": "127.0.0.1:1"},
            "llm.listenIpInfo",
        ),
    ],
)
def test_missing_option_is_named(role, given, text):
    with refused(LLMException, text):
        _options.read(role, 7, given)


def test_a_prompt_may_listen_by_the_option_of_the_engine():
    given = {"ge.exec.deviceId": "0", "datadist.listen": "127.0.0.1:0"}
    assert _options.read(PROMPT, 7, given).engine == {"datadist.listen": "127.0.0.1:0"}


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (None, AttributeError, None),
        ([], TypeError, "options only support"),
        ("{}", TypeError, "options only support"),
        ({"ge.flowGraphMemMaxSize": 123}, TypeError, "option ge.flowGraphMemMaxSize only support"),
        ({"llm.listenIpInfo": None}, TypeError, "llm.listenIpInfo only support"),
        ({"foreign": 1}, TypeError, "option foreign only support"),
        ({1: "a"}, TypeError, "options dict key 1 only support"),
    ],
)
def test_options_are_a_dict_of_texts(given, error, text):
    with pytest.raises(error, match=text):
        _options.read(PROMPT, 7, given)
    with pytest.raises(error, match=text):
        LLMDataDist(PROMPT, 7).init(given)


def test_foreign_names_are_accepted_with_one_line(capsys, monkeypatch):
    from llm_datadist.utils import log

    monkeypatch.setattr(log.get_logger(), "level", 20)
    log.get_logger().manager._clear_cache()
    with_devices(**{"ge.exec.rankId": "1", "llm.Other": "x", "llm.OutputMaxSize": "1"})
    lines = capsys.readouterr().out.splitlines()
    log.get_logger().manager._clear_cache()
    assert len(lines) == 1
    assert "ge.exec.rankId, llm.Other" in lines[0]
    assert "OutputMaxSize" not in lines[0]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("datadist.nonsense", "1", "datadist.nonsense"),
        ("datadist.workers", "many", "a whole number from 1 to 16"),
        ("datadist.transport", "pigeon", "pigeon"),
    ],
)
def test_bad_option_of_the_engine_is_refused_by_init(name, value, text):
    with refused(LLMException, text):
        LLMDataDist(DECODER, 1).init(options(listen=None, **{name: value}))
    assert LLMDataDist.llm_engine_instance is None
