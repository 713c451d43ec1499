"""What the options of `init` mean: which mode, which devices, which options of the engine.

The engine knows options of its own, "datadist.*"; this file is the one place where the names of
the interface are translated into them. It changes nothing but the caller's dict.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Dict, List, NamedTuple, Tuple

from llm_datadist import _option_values as values
from llm_datadist._address import Ip, endpoint_text, parse_listen_ip_info, trans_str_ip
from llm_datadist.configs import LLMRole
from llm_datadist.status import LLMException, LLMStatusCode, raise_if_false
from llm_datadist.utils import log
from llm_datadist.utils.utils import UINT16_MAX, UINT32_MAX, check_isinstance

DEVICES = "ge.exec.deviceId"
MEMORY_LIMIT = "ge.flowGraphMemMaxSize"
MEMORY_UTILIZATION = "llm.MemoryUtilization"
ROLE = "llm.Role"
CLUSTER_INFO = "llm.ClusterInfo"
LISTEN = "llm.listenIpInfo"
SYNC_TIMEOUT = "llm.SyncKvCacheWaitTime"
CACHE_MANAGER = "llm.EnableCacheManager"
REMOTE_ACCESSIBLE = "llm.EnableRemoteCacheAccessible"
LOCAL_COMM_RES = "llm.LocalCommRes"
TRANSFER_BACKEND = "llm.TransferBackend"

ENGINE_PREFIX = "datadist."
ENGINE_LISTEN = "datadist.listen"

ROLE_TEXT = {LLMRole.PROMPT: "Prompt", LLMRole.DECODER: "Decoder", LLMRole.MIX: "Mix"}

_DEFAULT_UTILIZATION = "0.95"

# Options that mean something here, with the check of their text; None: any text.
_KNOWN = {
    DEVICES: values.device_list,
    "ge.session_device_id": values.device_list,
    "ge.resourceConfigPath": None,
    MEMORY_LIMIT: values.memory_limit,
    MEMORY_UTILIZATION: values.fraction,
    ROLE: None,
    CLUSTER_INFO: values.json_object,
    LISTEN: None,
    SYNC_TIMEOUT: values.sync_timeout,
    "llm.EnableSwitchRole": values.flag,
    CACHE_MANAGER: None,
    REMOTE_ACCESSIBLE: values.flag,
    "llm.MemPoolConfig": values.memory_pool,
    "llm.HostMemPoolConfig": values.memory_pool,
    "llm.BufPoolCfg": values.buffer_pool,
    LOCAL_COMM_RES: None,
    TRANSFER_BACKEND: None,
    "llm.GlobalResourceConfig": None,
    "llm.RdmaTrafficClass": values.whole_number(0, UINT32_MAX),
    "llm.RdmaServiceLevel": values.whole_number(0, UINT32_MAX),
    "llm.LinkTotalTime": values.whole_number(0, UINT32_MAX),
    "llm.LinkRetryCount": values.whole_number(1, 100),
    "llm.deployResPath": None,
    "llm.OutputMaxSize": None,
}


class GeneratedClusterInfo(str):
    """Text that `init` wrote into the caller's dict. In a later `init` it counts as not given, so
    that an edited address or device list of the same dict is not overruled by it."""


class Settings(NamedTuple):
    """What a dict of options comes to."""

    is_cache_manager: bool
    device_count: int
    engine: Dict[str, str]  # options of the engine


class _Cluster(NamedTuple):
    device_count: int
    listen: List[Tuple[Ip, int]]  # where to listen, one per device


def read(role: LLMRole, cluster_id: int, options: Dict[str, str]) -> Settings:
    """Check the options and translate them; log once which names mean nothing here.

    In classic mode `llm.Role` and `llm.ClusterInfo` are written into `options`.

    Raises:
        AttributeError, TypeError: `options` is None, or no dict of str to str.
        ValueError, RuntimeError: a port that is no number, a host that is no address.
        LLMException: LLM_PARAM_INVALID, with the option, its value and what is allowed.
    """
    _check_texts(options)
    if MEMORY_LIMIT in options:
        values.memory_limit(MEMORY_LIMIT, options[MEMORY_LIMIT])
    is_cache_manager = _is_cache_manager(options)
    for name, check in _KNOWN.items():
        if check is not None and name in options:
            check(name, options[name])
    _log_foreign(options)
    if is_cache_manager:
        return Settings(True, 1, {})
    if CLUSTER_INFO in options and not isinstance(options[CLUSTER_INFO], GeneratedClusterInfo):
        cluster = _cluster_of_info(options[CLUSTER_INFO], cluster_id)
    else:
        cluster = _cluster_of_options(role, options)
        options[CLUSTER_INFO] = _cluster_info(role, cluster_id, cluster)
    options[ROLE] = ROLE_TEXT[role]
    engine = _translate(options)
    if role is LLMRole.PROMPT and cluster.listen:
        engine.setdefault(ENGINE_LISTEN, endpoint_text(*cluster.listen[0]))
    return Settings(False, cluster.device_count, engine)


def _check_texts(options) -> None:
    check_isinstance("options", options, dict)
    for name, value in options.items():  # None is an AttributeError
        check_isinstance(f"options dict key {name!r}", name, str, allow_none=False)
        check_isinstance(f"option {name}", value, str, f" ({value!r})", allow_none=False)


def _log_foreign(options: Dict[str, str]) -> None:
    foreign = [
        name for name in options if name not in _KNOWN and not name.startswith(ENGINE_PREFIX)
    ]
    if foreign:
        log.warn("options that mean nothing here are ignored: %s", ", ".join(sorted(foreign)))


def _is_cache_manager(options: Dict[str, str]) -> bool:
    """Return whether the newer mode is asked for, by its own option or by one that implies it."""
    mode = options.get(CACHE_MANAGER)
    if LOCAL_COMM_RES in options:
        raise_if_false(
            mode in (None, "1"),
            f'option {CACHE_MANAGER} is {mode!r}, with {LOCAL_COMM_RES} it is "1" or left out',
        )
        mode = "1"
    if TRANSFER_BACKEND in options:
        backend = options[TRANSFER_BACKEND]
        accessible = options.get(REMOTE_ACCESSIBLE)
        raise_if_false(
            mode == "1",
            f'option {CACHE_MANAGER} is {mode!r}, with {TRANSFER_BACKEND} it has to be "1"',
        )
        raise_if_false(
            accessible in (None, "1"),
            f"option {REMOTE_ACCESSIBLE} is {accessible!r}, with {TRANSFER_BACKEND} it is "
            '"1" or left out',
        )
        raise_if_false(
            LISTEN in options, f"option {LISTEN} is missing, {TRANSFER_BACKEND} needs it"
        )
        raise_if_false(
            backend == "hixl", f'option {TRANSFER_BACKEND} is {backend!r}, wanted "hixl"'
        )
    return mode == "1"


def _cluster_of_options(role: LLMRole, options: Dict[str, str]) -> _Cluster:
    """Read devices and listening addresses from the single options."""
    raise_if_false(
        DEVICES in options, f'option {DEVICES} is missing, wanted device indices such as "0"'
    )
    device_count = len(options[DEVICES].split(";"))
    text = options.get(LISTEN)
    listen = _listen_addresses(text) if text else []
    if role is LLMRole.PROMPT:
        raise_if_false(
            listen or ENGINE_LISTEN in options,
            f'option {LISTEN} is missing, role PROMPT needs it, such as "127.0.0.1:26000"',
        )
        raise_if_false(
            len(listen) == device_count or not listen,
            f"option {LISTEN} is {text!r}, wanted one address for each of {device_count} devices",
        )
    return _Cluster(device_count, listen)


def _listen_addresses(text: str) -> List[Tuple[Ip, int]]:
    try:
        endpoints = [parse_listen_ip_info(item) for item in text.split(";")]
        return [(trans_str_ip(host), port) for host, port in endpoints]
    except LLMException as error:
        raise LLMException(
            f"option {LISTEN} is {text!r}: {error}", status_code=error.status_code
        ) from None
    except (ValueError, RuntimeError) as error:
        raise type(error)(f"option {LISTEN} is {text!r}: {error}") from None


def _cluster_info(role: LLMRole, cluster_id: int, cluster: _Cluster) -> GeneratedClusterInfo:
    info = {
        "cluster_id": cluster_id,
        "logic_device_id": [f"0:0:{device}:0" for device in range(cluster.device_count)],
    }
    if role is LLMRole.PROMPT:
        info["listen_ip_info"] = [{"ip": ip, "port": port} for ip, port in cluster.listen]
    return GeneratedClusterInfo(json.dumps(info))


def _cluster_of_info(text: str, cluster_id: int) -> _Cluster:
    """Read devices and listening addresses from a given llm.ClusterInfo."""
    info = values.json_object(CLUSTER_INFO, text)
    devices = info.get("logic_device_id", ["0:0:0:0"])
    entries = info.get("listen_ip_info", [])
    raise_if_false(
        isinstance(devices, list) and devices and isinstance(entries, list),
        f"option {CLUSTER_INFO} is {text!r}, wanted lists logic_device_id and listen_ip_info",
    )
    if info.get("cluster_id", cluster_id) != cluster_id:
        log.warn("%s names cluster %s, using %s", CLUSTER_INFO, info["cluster_id"], cluster_id)
    return _Cluster(len(devices), [_entry_address(entry, text) for entry in entries])


def _entry_address(entry, text: str) -> Tuple[Ip, int]:
    fields = entry if isinstance(entry, dict) else {}
    ip, port = fields.get("ip"), fields.get("port")
    raise_if_false(
        (isinstance(ip, str) or (values.is_count(ip) and ip <= UINT32_MAX))
        and values.is_count(port)
        and port <= UINT16_MAX,
        f"option {CLUSTER_INFO} is {text!r}, wanted ip and port in each element of listen_ip_info",
    )
    return (trans_str_ip(ip) if isinstance(ip, str) else ip), port


def _translate(options: Dict[str, str]) -> Dict[str, str]:
    """Translate options of the interface into those of the engine, whose own names win."""
    engine = {}
    if SYNC_TIMEOUT in options:
        engine["datadist.sync_timeout_ms"] = str(int(options[SYNC_TIMEOUT]))
    utilization = options.get(MEMORY_UTILIZATION, _DEFAULT_UTILIZATION)
    if MEMORY_LIMIT in options:
        limit = int(Decimal(options[MEMORY_LIMIT]) * Decimal(utilization))
        engine["datadist.pool_bytes"] = str(max(limit, 1))  # 0 would mean "no limit"
    elif MEMORY_UTILIZATION in options:
        engine["datadist.pool_fraction"] = str(float(utilization))
    engine.update(
        (name, value) for name, value in options.items() if name.startswith(ENGINE_PREFIX)
    )
    return engine


def refuse_what_is_not_there(settings: Settings) -> None:
    """Raise LLMException with LLM_FEATURE_NOT_ENABLED for what this version cannot do."""
    if settings.is_cache_manager:
        text = (
            f"the cache manager mode ({CACHE_MANAGER}, {LOCAL_COMM_RES}) is not available in this "
            f'version; leave these options out or set {CACHE_MANAGER} to "0"'
        )
    elif settings.device_count > 1:
        text = (
            f"{settings.device_count} devices in one process are not available in this version; "
            "use one process per device"
        )
    else:
        return
    raise LLMException(text, status_code=LLMStatusCode.LLM_FEATURE_NOT_ENABLED)
