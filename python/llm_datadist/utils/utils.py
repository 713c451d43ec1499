"""Argument checks with one wording: TypeError for a type, ValueError for an integer's width.

Each check takes the argument's name, for the text, and its value. The name may be left out.
`None` passes the type checks (a call that cannot use it fails where it does) and no width check.
"""

from __future__ import annotations

from llm_datadist.status import raise_if_false

__all__ = [
    "check_dict",
    "check_inner",
    "check_int32",
    "check_int64",
    "check_isinstance",
    "check_list_int32",
    "check_list_int64",
    "check_list_uint64",
    "check_positive_or_set_default",
    "check_uint16",
    "check_uint32",
    "check_uint64",
    "check_uint8",
]

INT64_MAX = 2**63 - 1
UINT16_MAX = 2**16 - 1
UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1

_RANGES = {
    "uint64": (0, UINT64_MAX),
    "uint32": (0, UINT32_MAX),
    "uint16": (0, UINT16_MAX),
    "uint8": (0, 2**8 - 1),
    "int64": (-(2**63), INT64_MAX),
    "int32": (-(2**31), 2**31 - 1),
}

_NO_NAME = object()


def _as_tuple(classes):
    return tuple(classes) if isinstance(classes, (list, tuple)) else (classes,)


def _names(classes) -> list:
    return [cls.__name__ for cls in classes]


def check_isinstance(name, value, classes, extra_info: str = "", allow_none: bool = True) -> None:
    """Raise TypeError unless `value` is an instance of one of `classes`, or None if allowed."""
    classes = _as_tuple(classes)
    if isinstance(value, classes) or (value is None and allow_none):
        return
    raise TypeError(
        f"{name} only support {_names(classes)}, but got {type(value).__name__}{extra_info}"
    )


def _check_all(name, values, classes, what) -> None:
    classes = _as_tuple(classes)
    # The set of types is made without running Python code per element: lists of blocks are long.
    for cls in set(map(type, values)):
        if not issubclass(cls, classes):
            raise TypeError(f"{name} {what} only support {_names(classes)}, but got {cls.__name__}")


def check_inner(name, values, classes) -> None:
    """Raise TypeError unless every element of `values` is an instance of one of `classes`."""
    _check_all(name, values, classes, "inner type")


def check_dict(name, value, key_classes, value_classes) -> None:
    """Raise TypeError unless `value` is a dict (or None) with keys and values of these classes."""
    check_isinstance(name, value, dict)
    if value is not None:
        _check_all(name, value, key_classes, "dict key")
        _check_all(name, value.values(), value_classes, "dict value")


def _check_width(name, value, width) -> None:
    if value is _NO_NAME:
        name, value = "value", name
    check_isinstance(name, value, int, allow_none=False)
    low, high = _RANGES[width]
    if not low <= value <= high:
        raise ValueError(f"{name} is out of range, {value} is not a {width} value")


def check_uint64(name, value=_NO_NAME) -> None:
    """Raise TypeError or ValueError unless `value` is an int from 0 to 2**64 - 1."""
    _check_width(name, value, "uint64")


def check_int64(name, value=_NO_NAME) -> None:
    """Raise TypeError or ValueError unless `value` is an int from -2**63 to 2**63 - 1."""
    _check_width(name, value, "int64")


def check_uint32(name, value=_NO_NAME) -> None:
    """Raise TypeError or ValueError unless `value` is an int from 0 to 2**32 - 1."""
    _check_width(name, value, "uint32")


def check_int32(name, value=_NO_NAME) -> None:
    """Raise TypeError or ValueError unless `value` is an int from -2**31 to 2**31 - 1."""
    _check_width(name, value, "int32")


def check_uint16(name, value=_NO_NAME) -> None:
    """Raise TypeError or ValueError unless `value` is an int from 0 to 65535."""
    _check_width(name, value, "uint16")


def check_uint8(name, value=_NO_NAME) -> None:
    """Raise TypeError or ValueError unless `value` is an int from 0 to 255."""
    _check_width(name, value, "uint8")


def _check_list_width(name, values, width) -> None:
    if values is _NO_NAME:
        name, values = "value", name
    check_isinstance(name, values, (list, tuple), allow_none=False)
    check_inner(name, values, int)
    if values:
        _check_width(name, min(values), width)
        _check_width(name, max(values), width)


def check_list_uint64(name, values=_NO_NAME) -> None:
    """Raise TypeError or ValueError unless `values` is a list or tuple of uint64 ints."""
    _check_list_width(name, values, "uint64")


def check_list_int64(name, values=_NO_NAME) -> None:
    """Raise TypeError or ValueError unless `values` is a list or tuple of int64 ints."""
    _check_list_width(name, values, "int64")


def check_list_int32(name, values=_NO_NAME) -> None:
    """Raise TypeError or ValueError unless `values` is a list or tuple of int32 ints."""
    _check_list_width(name, values, "int32")


def check_positive_or_set_default(name, value, default: int) -> int:
    """Return `value`, or `default` for None; an int that is not above 0 is PARAM_INVALID."""
    check_isinstance(name, value, int)
    if value is None:
        return default
    raise_if_false(value > 0, f"{name} is {value}, wanted a number above 0")
    return value
