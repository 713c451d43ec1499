"""Small helpers, under the path that other code imports them from."""

from llm_datadist._address import parse_listen_ip_info
from llm_datadist.cache_types import INVALID_ID, calc_tensor_size

__all__ = ["calc_tensor_size", "is_invalid_id", "is_valid_id", "parse_listen_ip_info"]


def is_valid_id(value: int) -> bool:
    """Return whether a request or prefix id names something."""
    return value != INVALID_ID


def is_invalid_id(value: int) -> bool:
    """Return whether a request or prefix id stands for "no id"."""
    return value == INVALID_ID
