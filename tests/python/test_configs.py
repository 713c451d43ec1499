"""LLMConfig, LLMClusterInfo and addresses."""

import json

import pytest

from llm_datadist import LLMClusterInfo, LLMConfig, LLMException, LLMRole, LLMStatusCode
from llm_datadist._address import endpoint_text, ip_text, parse_listen_ip_info
from llm_datadist.configs import trans_str_ip

FRESH = {"llm.MemoryUtilization": "0.95"}

# (property, value as set, option, text)
WRITTEN = [
    ("device_id", 0, "ge.exec.deviceId", "0"),
    ("device_id", True, "ge.exec.deviceId", "1"),
    ("device_id", [0, 1], "ge.exec.deviceId", "0;1"),
    ("device_id", (3,), "ge.exec.deviceId", "3"),
    ("listen_ip_info", "127.0.0.1:0", "llm.listenIpInfo", "127.0.0.1:0"),
    ("sync_kv_timeout", 5000, "llm.SyncKvCacheWaitTime", "5000"),
    ("sync_kv_timeout", "3000", "llm.SyncKvCacheWaitTime", "3000"),
    ("enable_switch_role", True, "llm.EnableSwitchRole", "1"),
    ("mem_utilization", 0.5, "llm.MemoryUtilization", "0.5"),
    ("mem_utilization", 0.0, "llm.MemoryUtilization", "0.0"),
    ("mem_utilization", 1.0, "llm.MemoryUtilization", "1.0"),
    ("buf_pool_cfg", "{}", "llm.BufPoolCfg", "{}"),
    ("mem_pool_cfg", "{}", "llm.MemPoolConfig", "{}"),
    ("host_mem_pool_cfg", "{}", "llm.HostMemPoolConfig", "{}"),
    ("enable_cache_manager", True, "llm.EnableCacheManager", "1"),
    ("enable_cache_manager", False, "llm.EnableCacheManager", "0"),
    ("enable_remote_cache_accessible", True, "llm.EnableRemoteCacheAccessible", "1"),
    ("enable_remote_cache_accessible", False, "llm.EnableRemoteCacheAccessible", "0"),
    ("rdma_traffic_class", 100, "llm.RdmaTrafficClass", "100"),
    ("rdma_service_level", 0, "llm.RdmaServiceLevel", "0"),
    ("local_comm_res", "", "llm.LocalCommRes", ""),
    ("local_comm_res", "{}", "llm.LocalCommRes", "{}"),
    ("link_total_time", 0, "llm.LinkTotalTime", "0"),
    ("link_total_time", 2**32 - 1, "llm.LinkTotalTime", "4294967295"),
    ("link_retry_count", 80, "llm.LinkRetryCount", "80"),
    ("transfer_backend", "hixl", "llm.TransferBackend", "hixl"),
    ("global_resource_config", "", "llm.GlobalResourceConfig", ""),
    ("global_resource_config", '{"a":1}', "llm.GlobalResourceConfig", '{"a":1}'),
    ("deploy_res_path", "./", "llm.deployResPath", "./"),
    ("output_max_size", 7, "llm.OutputMaxSize", "7"),
]

# (property, value): set without error, nothing is written
NOT_WRITTEN = [
    ("enable_switch_role", False),
    ("enable_switch_role", None),
    ("enable_cache_manager", None),
    ("enable_remote_cache_accessible", None),
    ("listen_ip_info", ""),
    ("listen_ip_info", None),
    ("buf_pool_cfg", ""),
    ("mem_pool_cfg", None),
    ("local_comm_res", None),
    ("global_resource_config", None),
    ("cluster_info", ""),
    ("cluster_info", None),
    ("ge_options", {}),
]

REFUSED = [
    ("device_id", None, TypeError),
    ("device_id", "0", TypeError),
    ("device_id", ["0"], TypeError),
    ("device_id", -1, LLMException),
    ("device_id", [0, -1], LLMException),
    ("device_id", [], LLMException),
    ("device_id", 2**31, ValueError),
    ("listen_ip_info", 1, TypeError),
    ("sync_kv_timeout", None, TypeError),
    ("sync_kv_timeout", 1.0, TypeError),
    ("sync_kv_timeout", "abc", LLMException),
    ("sync_kv_timeout", "-1", LLMException),
    ("sync_kv_timeout", "", LLMException),
    ("sync_kv_timeout", "²", LLMException),
    ("sync_kv_timeout", 0, LLMException),
    ("sync_kv_timeout", "0", LLMException),
    ("sync_kv_timeout", -1, LLMException),
    ("sync_kv_timeout", 2**31, ValueError),
    ("sync_kv_timeout", str(2**31), ValueError),
    ("enable_switch_role", 1, TypeError),
    ("ge_options", None, AttributeError),
    ("ge_options", [], TypeError),
    ("ge_options", {"a": 1}, TypeError),
    ("ge_options", {1: "a"}, TypeError),
    ("mem_utilization", 1, TypeError),
    ("mem_utilization", "0.5", TypeError),
    ("mem_utilization", None, TypeError),
    ("mem_utilization", 1.5, LLMException),
    ("mem_utilization", -0.1, LLMException),
    ("mem_utilization", float("nan"), LLMException),
    ("buf_pool_cfg", {}, TypeError),
    ("mem_pool_cfg", 1, TypeError),
    ("host_mem_pool_cfg", 1, TypeError),
    ("enable_cache_manager", 1, TypeError),
    ("enable_remote_cache_accessible", "1", TypeError),
    ("rdma_traffic_class", -1, ValueError),
    ("rdma_traffic_class", None, TypeError),
    ("rdma_traffic_class", "1", TypeError),
    ("rdma_service_level", 2**32, ValueError),
    ("local_comm_res", {}, TypeError),
    ("link_total_time", "1", TypeError),
    ("link_total_time", -1, LLMException),
    ("link_total_time", 2**32, LLMException),
    ("link_retry_count", 1.0, TypeError),
    ("link_retry_count", 0, LLMException),
    ("link_retry_count", 101, LLMException),
    ("transfer_backend", 1, TypeError),
    ("global_resource_config", 1, TypeError),
    ("global_resource_config", {}, TypeError),
    ("global_resource_config", [], TypeError),
    ("deploy_res_path", 1, TypeError),
    ("cluster_info", 1, TypeError),
    ("cluster_info", "{", json.JSONDecodeError),
    ("cluster_info", "[]", LLMException),
    ("cluster_info", '{"listen_ip_info": [{"ip": "host", "port": 1}]}', RuntimeError),
    ("output_max_size", "1", TypeError),
    ("options", {}, AttributeError),
]

DEFAULTS = {
    "device_id": None,
    "listen_ip_info": "",
    "sync_kv_timeout": None,
    "enable_switch_role": False,
    "ge_options": {},
    "mem_utilization": 0.95,
    "buf_pool_cfg": "",
    "mem_pool_cfg": "",
    "host_mem_pool_cfg": "",
    "enable_cache_manager": False,
    "enable_remote_cache_accessible": False,
    "rdma_traffic_class": None,
    "rdma_service_level": None,
    "local_comm_res": "",
    "link_total_time": 0,
    "link_retry_count": 1,
    "transfer_backend": "",
    "global_resource_config": "",
    "deploy_res_path": "",
    "cluster_info": "",
    "output_max_size": None,
    "options": {},
}


def test_fresh_config():
    config = LLMConfig()
    for name, value in DEFAULTS.items():
        assert getattr(config, name) == value, name
    assert config.generate_options() == FRESH


@pytest.mark.parametrize(("name", "value", "key", "text"), WRITTEN)
def test_property_is_read_back_and_written(name, value, key, text):
    config = LLMConfig()
    setattr(config, name, value)
    assert getattr(config, name) is value
    written = {**FRESH, key: text}
    assert config.generate_options() == written
    assert config.gen_options() == written
    for one_key, one_text in config.options.items():
        assert type(one_key) is str and type(one_text) is str


@pytest.mark.parametrize(("name", "value"), NOT_WRITTEN)
def test_unset_property_writes_nothing(name, value):
    config = LLMConfig()
    setattr(config, name, value)
    assert getattr(config, name) == DEFAULTS[name]
    assert config.generate_options() == FRESH


@pytest.mark.parametrize(("name", "value", "error"), REFUSED)
def test_bad_property_is_refused(name, value, error):
    config = LLMConfig()
    with pytest.raises(error) as caught:
        setattr(config, name, value)
    if error is LLMException:
        assert caught.value.status_code is LLMStatusCode.LLM_PARAM_INVALID
    assert getattr(config, name) == DEFAULTS[name]


def test_options_accumulate_in_one_dict():
    config = LLMConfig()
    options = config.generate_options()
    config.rdma_traffic_class = 4
    config.enable_switch_role = True
    assert config.generate_options() is options
    assert config.options is options
    assert options["llm.RdmaTrafficClass"] == "4"
    config.enable_switch_role = False
    assert config.generate_options()["llm.EnableSwitchRole"] == "1"
    assert LLMConfig().options is not options


def test_ge_options_are_live_and_a_property_overrides_them():
    config = LLMConfig()
    config.ge_options["ge.flowGraphMemMaxSize"] = "1000"
    config.ge_options["llm.RdmaTrafficClass"] = "1"
    config.rdma_traffic_class = 2
    options = config.generate_options()
    assert options["ge.flowGraphMemMaxSize"] == "1000"
    assert options["llm.RdmaTrafficClass"] == "2"
    given = {"k": "v"}
    config.ge_options = given
    assert config.ge_options is given


def test_cluster_info_is_written_with_numbers_for_ipv4():
    config = LLMConfig()
    info = {
        "cluster_id": 1,
        "listen_ip_info": [{"ip": "1.2.3.4", "port": 1}, {"ip": 5, "port": 2}, {"ip": "::1"}],
    }
    config.cluster_info = json.dumps(info)
    written = json.loads(config.generate_options()["llm.ClusterInfo"])
    assert [entry["ip"] for entry in written["listen_ip_info"]] == [0x04030201, 5, "::1"]
    assert written["cluster_id"] == 1


def test_unknown_attributes_are_plain():
    config = LLMConfig()
    config.foo = 1
    assert config.generate_options() == FRESH


# ---- addresses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kept", "shown"),
    [
        ("1.2.3.4", 67305985, "1.2.3.4"),
        ("127.0.0.1", 0x0100007F, "127.0.0.1"),
        ("127.1", 0x0100007F, "127.0.0.1"),
        ("0x7f000001", 0x0100007F, "127.0.0.1"),
        ("255.255.255.255", 0xFFFFFFFF, "255.255.255.255"),
        ("::1", "::1", "::1"),
        ("fe80::1%lo", "fe80::1%lo", "fe80::1%lo"),
        ("::ffff:1.2.3.4", "::ffff:1.2.3.4", "::ffff:1.2.3.4"),
    ],
)
def test_address_is_kept(text, kept, shown):
    assert trans_str_ip(text) == kept
    assert ip_text(kept) == shown
    info = LLMClusterInfo()
    info.append_local_ip_info(text, 0)
    info.append_remote_ip_info(text, 65535)
    assert info.local_ip_info_list == [(kept, 0)]
    assert info.remote_ip_info_list == [(kept, 65535)]


@pytest.mark.parametrize(
    "text",
    ["", " ", "localhost", "1.2.3.4 junk", " 1.2.3.4", "1.2.3.4\n", "1.2.3.256", "1.2.3.4.5"]
    + ["[::1]", "[::1]:26000", "::g", "1.2.3.4:26000", ":", "a\0b", "１.2.3.4"],
)
def test_text_that_is_no_address_is_refused(text):
    for append in ("append_local_ip_info", "append_remote_ip_info"):
        info = LLMClusterInfo()
        with pytest.raises(RuntimeError, match="Can not parse ip str"):
            getattr(info, append)(text, 26000)
        assert info.local_ip_info_list == info.remote_ip_info_list == []


@pytest.mark.parametrize(
    ("ip", "port", "error"),
    [
        (1.0, 1, TypeError),
        (b"1.2.3.4", 1, TypeError),
        ("1.2.3.4", "1", TypeError),
        ("1.2.3.4", None, TypeError),
        ("1.2.3.4", -1, ValueError),
        ("1.2.3.4", 65536, ValueError),
        ("no address", 65536, ValueError),
        (2**32, 1, ValueError),
        (-1, 1, ValueError),
    ],
)
def test_bad_ip_or_port_is_refused(ip, port, error):
    with pytest.raises(error):
        LLMClusterInfo().append_remote_ip_info(ip, port)


def test_int_address_is_stored_unchanged():
    info = LLMClusterInfo()
    for _ in range(20):
        info.append_remote_ip_info(1, 26000)
    assert info.remote_ip_info_list == [(1, 26000)] * 20
    assert endpoint_text(1, 26000) == "1.0.0.0:26000"
    assert endpoint_text("::1", 26000) == "[::1]:26000"


def test_cluster_info_properties():
    info = LLMClusterInfo()
    assert info.remote_cluster_id is None
    info.remote_cluster_id = 2**64 - 1
    assert info.remote_cluster_id == 2**64 - 1
    for bad, error in ((None, TypeError), ("1", TypeError), (-1, ValueError), (2**64, ValueError)):
        with pytest.raises(error):
            info.remote_cluster_id = bad
    info.remote_role_type = LLMRole.PROMPT
    info.remote_role_type = 0
    with pytest.raises(TypeError, match="only support"):
        info.remote_role_type = "PROMPT"
    with pytest.raises(AttributeError):
        info.local_ip_info_list = []


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("22:33", ("22", 33)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:26000", ("::1", 26000)),
        ("[fe80::1%lo]:1", ("fe80::1%lo", 1)),
    ],
)
def test_listen_text_is_split(text, parts):
    assert parse_listen_ip_info(text) == parts


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("127.0.0.1", LLMException),
        ("1:2:3", LLMException),
        ("::1:26000", LLMException),
        ("[::1]", LLMException),
        ("[::1", LLMException),
        ("127.0.0.1:65536", LLMException),
        ("127.0.0.1:", ValueError),
        ("127.0.0.1:x", ValueError),
        ("127.0.0.1:-1", ValueError),
        ("127.0.0.1: 1", ValueError),
        ("[::1]:x", ValueError),
    ],
)
def test_bad_listen_text_is_refused(text, error):
    with pytest.raises(error) as caught:
        parse_listen_ip_info(text)
    assert text in str(caught.value)
