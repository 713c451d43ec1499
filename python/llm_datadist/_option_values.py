"""Which texts the options of `init` may have. Each check names option, value and what is allowed.

A check takes the option's name and its text and raises LLMException with LLM_PARAM_INVALID.
"""

from __future__ import annotations

import json

from llm_datadist.status import raise_if_false
from llm_datadist.utils.utils import UINT32_MAX

_INT32_MAX = 2**31 - 1
_MIB_2 = 2 * 1024 * 1024


def _require(condition, name: str, value: str, allowed: str) -> None:
    raise_if_false(condition, f"option {name} is {value!r}, wanted {allowed}")


def whole_number(low: int, high: int):
    """Make a check for decimal digits from `low` to `high`."""

    def check(name: str, value: str) -> None:
        is_number = value.isascii() and value.isdigit()
        _require(
            is_number and low <= int(value) <= high, name, value, f"a number from {low} to {high}"
        )

    return check


def flag(name: str, value: str) -> None:
    """Check for "0" or "1"."""
    _require(value in ("0", "1"), name, value, '"0" or "1"')


def fraction(name: str, value: str) -> None:
    """Check for a number from 0.0 to 1.0."""
    try:
        is_fraction = 0.0 <= float(value) <= 1.0
    except ValueError:
        is_fraction = False
    _require(is_fraction, name, value, "a number from 0.0 to 1.0")


def device_list(name: str, value: str) -> None:
    """Check for device indices joined by semicolons."""
    are_digits = all(part.isascii() and part.isdigit() for part in value.split(";"))
    _require(are_digits, name, value, 'device indices such as "0" or "0;1"')


def memory_limit(name: str, value: str) -> None:
    """Check for a single number of bytes."""
    _require("," not in value, name, value, "one number of bytes, without a comma")
    whole_number(0, 2**63 - 1)(name, value)


def json_object(name: str, value: str) -> dict:
    """Check for a JSON object and return it."""
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    _require(isinstance(found, dict), name, value, "a JSON object")
    return found


def is_count(value) -> bool:
    """Return whether a value out of JSON is an unsigned integer."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def memory_pool(name: str, value: str) -> None:
    """Check the description of a memory pool."""
    found = json_object(name, value)
    size = found.get("memory_size")
    shift = found.get("page_shift", 16)
    _require(is_count(size) and size > 0, name, value, "memory_size, a number of bytes above 0")
    _require(
        is_count(shift) and 10 <= shift <= 30, name, value, "page_shift, a number from 10 to 30"
    )
    _require(size >> shift < UINT32_MAX, name, value, f"less than {UINT32_MAX} pages")


def buffer_pool(name: str, value: str) -> None:
    """Check the size classes of the buffer pool."""
    found = json_object(name, value)
    classes = found.get("buf_cfg")
    _require(isinstance(classes, list) and classes, name, value, "buf_cfg, a list of objects")
    _require(is_count(found.get("buf_pool_size", 0)), name, value, "buf_pool_size, a number")
    previous = -1
    for one in classes:
        previous = _check_size_class(name, value, one, previous)


def _check_size_class(name: str, value: str, one, previous: int) -> int:
    fields = ("total_size", "blk_size", "max_buf_size")
    _require(
        isinstance(one, dict) and all(is_count(one.get(field)) for field in fields),
        name,
        value,
        f"the numbers {', '.join(fields)} in each element of buf_cfg",
    )
    total, block, largest = (one[field] for field in fields)
    _require(
        0 < block <= _MIB_2 and block & (block - 1) == 0 and block <= largest,
        name,
        value,
        "blk_size, a power of two up to 2 MiB and max_buf_size",
    )
    _require(
        total <= UINT32_MAX and total % _MIB_2 == 0 and total % block == 0,
        name,
        value,
        f"total_size, a multiple of 2 MiB and blk_size up to {UINT32_MAX}",
    )
    _require(
        previous < largest < total,
        name,
        value,
        "max_buf_size below total_size and above that of the element before",
    )
    return largest


def sync_timeout(name: str, value: str) -> None:
    """Check for a number of milliseconds."""
    whole_number(1, _INT32_MAX)(name, value)
