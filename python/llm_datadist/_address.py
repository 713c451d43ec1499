"""IP addresses and ports as text, and the numbers that the interface uses for IPv4.

An IPv4 address is an int whose least significant byte is the first octet ("1.2.3.4" is
0x04030201). An IPv6 address stays a str. Host names are no addresses here.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Union

from llm_datadist.status import LLMException, LLMStatusCode
from llm_datadist.utils.utils import UINT16_MAX

Ip = Union[int, str]


def trans_str_ip(ip: str) -> Ip:
    """Turn the text of an address into the form that is kept: int for IPv4, str for IPv6.

    Takes every spelling of IPv4 that the C library takes ("127.1"), without anything behind it.
    Raises RuntimeError for a text that is no address.
    """
    try:
        if ":" in ip:
            ipaddress.IPv6Address(ip)
            return ip
        if ip.strip() == ip and len(ip.split()) == 1:
            return int.from_bytes(socket.inet_aton(ip), "little")
    except (OSError, ValueError):
        pass
    raise RuntimeError(f"Can not parse ip str {ip!r}, wanted an IPv4 or IPv6 address")


def ip_text(ip: Ip) -> str:
    """Return the usual text of an address."""
    return socket.inet_ntoa(ip.to_bytes(4, "little")) if isinstance(ip, int) else ip


def endpoint_text(ip: Ip, port: int) -> str:
    """Return "1.2.3.4:26000" or "[::1]:26000", as the engine takes it."""
    return f"{ip_text(ip)}:{port}" if isinstance(ip, int) else f"[{ip}]:{port}"


def parse_listen_ip_info(text: str) -> tuple:
    """Split "host:port" or "[v6]:port" into (host, port); the host is not looked at.

    Raises LLMException with LLM_PARAM_INVALID for another form or a port above 65535, ValueError
    for a port that is no number.
    """
    host, bracket, rest = text[1:].partition("]") if text.startswith("[") else ("", "", "")
    parts = [host, rest[1:]] if bracket and rest.startswith(":") else text.split(":")
    if len(parts) != 2:
        raise LLMException(
            f"listen address {text!r} has another form than host:port or [v6]:port",
            status_code=LLMStatusCode.LLM_PARAM_INVALID,
        )
    host, port = parts
    if not (port.isascii() and port.isdigit()):
        raise ValueError(f"listen address {text!r}: port {port!r} is not a number")
    if int(port) > UINT16_MAX:
        raise LLMException(
            f"listen address {text!r}: port {port} is above {UINT16_MAX}",
            status_code=LLMStatusCode.LLM_PARAM_INVALID,
        )
    return host, int(port)
