"""What a user configures: the role, the options of an instance, and the clusters to link with."""

from __future__ import annotations

import json
from typing import List, Optional, Tuple, Union

from llm_datadist._address import Ip, trans_str_ip
from llm_datadist._enum import NamedIntEnum
from llm_datadist.status import raise_if_false
from llm_datadist.utils.utils import (
    UINT32_MAX,
    check_dict,
    check_inner,
    check_int32,
    check_isinstance,
    check_uint16,
    check_uint32,
    check_uint64,
)

__all__ = ["LLMClusterInfo", "LLMConfig", "LLMRole", "LlmConfig", "trans_str_ip"]


class LLMRole(NamedIntEnum):
    """What an instance does: PROMPT owns caches and listens, DECODER links and pulls."""

    PROMPT = 1
    DECODER = 2
    MIX = 3


class LLMClusterInfo:
    """One cluster to link with or to unlink from: its id, and addresses of both sides."""

    def __init__(self):
        self._remote_cluster_id = None
        self._remote_role_type = 0
        self._local_ips = []
        self._remote_ips = []

    @property
    def remote_cluster_id(self) -> Optional[int]:
        """Id of the cluster, uint64; None until it is set."""
        return self._remote_cluster_id

    @remote_cluster_id.setter
    def remote_cluster_id(self, value: int) -> None:
        check_uint64("remote_cluster_id", value)
        self._remote_cluster_id = value

    @property
    def remote_role_type(self) -> Union[LLMRole, int]:
        """Role of the cluster. Kept, not used."""
        return self._remote_role_type

    @remote_role_type.setter
    def remote_role_type(self, value: Union[LLMRole, int]) -> None:
        check_isinstance("remote_role_type", value, (LLMRole, int))
        self._remote_role_type = value

    def append_local_ip_info(self, ip: Union[str, int], port: int) -> None:
        """Add an address of this side, as a wish for the source address of the connection.

        Args:
            ip: text of an IPv4 or IPv6 address, or an IPv4 address as an int whose least
                significant byte is the first octet.
            port: 0 to 65535; not used.

        Raises:
            TypeError, ValueError: a value of the wrong type or width.
            RuntimeError: a text that is no address.
        """
        self._local_ips.append(_ip_info(ip, port))

    def append_remote_ip_info(self, ip: Union[str, int], port: int) -> None:
        """Add the address where the cluster listens. Arguments as in `append_local_ip_info`."""
        self._remote_ips.append(_ip_info(ip, port))

    @property
    def local_ip_info_list(self) -> List[Tuple[Ip, int]]:
        """Addresses of this side, as (ip, port)."""
        return self._local_ips

    @property
    def remote_ip_info_list(self) -> List[Tuple[Ip, int]]:
        """Addresses of the cluster, as (ip, port)."""
        return self._remote_ips


def _ip_info(ip: Union[str, int], port: int) -> Tuple[Ip, int]:
    check_isinstance("ip", ip, (str, int))
    check_uint16("port", port)
    if isinstance(ip, int):
        check_uint32("ip", ip)
        return ip, port
    return trans_str_ip(ip), port


def _check_bool(name, value):
    check_isinstance(name, value, bool)


def _check_str(name, value):
    check_isinstance(name, value, str)


def _check_int(name, value):
    check_isinstance(name, value, int, allow_none=False)


def _check_device_id(name, value):
    check_isinstance(name, value, (int, list, tuple), allow_none=False)
    ids = [value] if isinstance(value, int) else value
    check_inner(name, ids, int)
    raise_if_false(ids, f"{name} is empty")
    for one in ids:
        raise_if_false(one >= 0, f"{name} is {value}, wanted 0 or above")
        check_int32(name, one)


def _check_timeout(name, value):
    check_isinstance(name, value, (int, str), allow_none=False)
    if isinstance(value, str):
        raise_if_false(
            value.isascii() and value.isdigit(), f"{name} is {value!r}, wanted a whole number"
        )
    raise_if_false(int(value) > 0, f"{name} is {value}, wanted a number of ms above 0")
    check_int32(name, int(value))


def _check_ge_options(name, value):
    check_dict(name, value, str, str)
    value.items()  # None is an AttributeError


def _check_fraction(name, value):
    check_isinstance(name, value, float, allow_none=False)
    raise_if_false(0.0 <= value <= 1.0, f"{name} is {value}, wanted 0.0 to 1.0")


def _check_cluster_info(name, value):
    check_isinstance(name, value, str)
    if value:
        _cluster_info_text(value)


def _check_link_total_time(name, value):
    _check_int(name, value)
    raise_if_false(0 <= value <= UINT32_MAX, f"{name} is {value}, wanted 0 to {UINT32_MAX}")


def _check_link_retry_count(name, value):
    _check_int(name, value)
    raise_if_false(1 <= value <= 100, f"{name} is {value}, wanted 1 to 100")


def _device_text(value) -> str:
    ids = [value] if isinstance(value, int) else value
    return ";".join(str(int(one)) for one in ids)


def _flag_text(value) -> str:
    return "1" if value else "0"


def _cluster_info_text(value) -> str:
    info = json.loads(value)
    raise_if_false(isinstance(info, dict), f"cluster_info is {value}, wanted a JSON object")
    for entry in info.get("listen_ip_info", ()):
        if isinstance(entry, dict) and isinstance(entry.get("ip"), str):
            entry["ip"] = trans_str_ip(entry["ip"])
    return json.dumps(info)


class _Option:
    """A property of LlmConfig: how it is checked, what it reads as unset, how it is written.

    With `skip_empty` an empty or false value is not written, as if it was never set.
    """

    def __init__(self, key, check, default=None, to_text=str, skip_empty=False, doc=""):
        self.key = key
        self._check = check
        self._default = default
        self._to_text = to_text
        self._skip_empty = skip_empty
        self.__doc__ = doc

    def __set_name__(self, owner, name):
        self._name = name
        self._slot = "_" + name

    def __get__(self, config, owner=None):
        if config is None:
            return self
        value = getattr(config, self._slot, None)
        return self._default if value is None else value

    def __set__(self, config, value):
        self._check(self._name, value)
        setattr(config, self._slot, value)

    def write(self, config, options: dict) -> None:
        value = getattr(config, self._slot, None)
        if value is not None and (value or not self._skip_empty):
            options[self.key] = self._to_text(value)


class LlmConfig:
    """Options of an instance as checked properties; `generate_options` gives them to `init`.

    Setters raise TypeError for a wrong type, ValueError outside an integer's width, and
    LLMException with LLM_PARAM_INVALID for a value that is not allowed. Text and flag properties
    take None as "unset".
    """

    device_id = _Option(
        "ge.exec.deviceId",
        _check_device_id,
        to_text=_device_text,
        doc="Device index, or a list of them.",
    )
    listen_ip_info = _Option(
        "llm.listenIpInfo",
        _check_str,
        "",
        skip_empty=True,
        doc='Where to listen, "host:port" or "[v6]:port"; port 0 takes a free one.',
    )
    sync_kv_timeout = _Option(
        "llm.SyncKvCacheWaitTime",
        _check_timeout,
        doc="Milliseconds that a transfer may take, as int or digits. Unset: 1000.",
    )
    enable_switch_role = _Option(
        "llm.EnableSwitchRole",
        _check_bool,
        False,
        _flag_text,
        skip_empty=True,
        doc="Whether the role may be switched.",
    )
    mem_utilization = _Option(
        "llm.MemoryUtilization",
        _check_fraction,
        doc="Share of ge.flowGraphMemMaxSize, or else of the memory, that caches may use.",
    )
    buf_pool_cfg = _Option(
        "llm.BufPoolCfg", _check_str, "", skip_empty=True, doc="JSON: size classes of the pool."
    )
    mem_pool_cfg = _Option(
        "llm.MemPoolConfig", _check_str, "", skip_empty=True, doc="JSON: the device pool."
    )
    host_mem_pool_cfg = _Option(
        "llm.HostMemPoolConfig", _check_str, "", skip_empty=True, doc="JSON: the host pool."
    )
    enable_cache_manager = _Option(
        "llm.EnableCacheManager",
        _check_bool,
        False,
        _flag_text,
        doc="Whether the newer interface (cache_manager) is used.",
    )
    enable_remote_cache_accessible = _Option(
        "llm.EnableRemoteCacheAccessible",
        _check_bool,
        False,
        _flag_text,
        doc="Whether peers reach caches without asking; newer interface.",
    )
    rdma_traffic_class = _Option(
        "llm.RdmaTrafficClass", check_uint32, doc="Traffic class of RDMA transports."
    )
    rdma_service_level = _Option(
        "llm.RdmaServiceLevel", check_uint32, doc="Service level of RDMA transports."
    )
    local_comm_res = _Option(
        "llm.LocalCommRes",
        _check_str,
        "",
        doc="JSON or empty: local resources. Selects the newer interface.",
    )
    link_total_time = _Option(
        "llm.LinkTotalTime", _check_link_total_time, 0, doc="Seconds that a group may take to link."
    )
    link_retry_count = _Option(
        "llm.LinkRetryCount", _check_link_retry_count, 1, doc="Attempts to link a group."
    )
    transfer_backend = _Option(
        "llm.TransferBackend", _check_str, "", doc='Name of the transfer layer; only "hixl".'
    )
    global_resource_config = _Option(
        "llm.GlobalResourceConfig", _check_str, "", doc="JSON for the transfer layer, kept as is."
    )
    deploy_res_path = _Option(
        "llm.deployResPath", _check_str, "", skip_empty=True, doc="Kept, not used."
    )
    cluster_info = _Option(
        "llm.ClusterInfo",
        _check_cluster_info,
        "",
        _cluster_info_text,
        skip_empty=True,
        doc="JSON: id, devices and listening addresses, in place of the single options.",
    )
    output_max_size = _Option("llm.OutputMaxSize", _check_int, doc="Kept, not used.")

    def __init__(self):
        self._options = {}
        self._ge_options = {}
        self.mem_utilization = 0.95

    @property
    def ge_options(self) -> dict:
        """Further options, str to str: the live dict. A property of its own overrides an entry."""
        return self._ge_options

    @ge_options.setter
    def ge_options(self, value: dict) -> None:
        _check_ge_options("ge_options", value)
        self._ge_options = value

    @property
    def options(self) -> dict:
        """What `generate_options` has gathered so far."""
        return self._options

    def generate_options(self) -> dict:
        """Write all properties that are set into `options` and return it: the same dict each time.

        Keys and values are str. An entry once written is never removed.
        """
        self._options.update(self._ge_options)
        for option in _OPTIONS:
            option.write(self, self._options)
        return self._options

    def gen_options(self) -> dict:
        """Do the same as `generate_options`."""
        return self.generate_options()


_OPTIONS = [value for value in vars(LlmConfig).values() if isinstance(value, _Option)]

LLMConfig = LlmConfig
