"""Element types of tensors, their sizes, and their numpy counterparts (numpy is loaded lazily)."""

from __future__ import annotations

from enum import Enum

__all__ = ["DataType", "get_python_dtype_from_wrapper_dtype", "python_dtype_2_dwrapper_dtype"]


class DataType(Enum):
    """Type of one element of a tensor."""

    DT_FLOAT = 0
    DT_FLOAT16 = 1
    DT_BF16 = 27
    DT_INT8 = 2
    DT_INT16 = 6
    DT_UINT16 = 7
    DT_UINT8 = 4
    DT_INT32 = 3
    DT_INT64 = 9
    DT_UINT32 = 8
    DT_UINT64 = 10
    DT_BOOL = 12
    DT_DOUBLE = 11
    DT_STRING = 13


ELEMENT_BYTES = {
    DataType.DT_FLOAT: 4,
    DataType.DT_FLOAT16: 2,
    DataType.DT_BF16: 2,
    DataType.DT_INT8: 1,
    DataType.DT_INT16: 2,
    DataType.DT_UINT16: 2,
    DataType.DT_UINT8: 1,
    DataType.DT_INT32: 4,
    DataType.DT_INT64: 8,
    DataType.DT_UINT32: 4,
    DataType.DT_UINT64: 8,
    DataType.DT_BOOL: 1,
    DataType.DT_DOUBLE: 8,
    DataType.DT_STRING: 16,
}

# Names of numpy's scalar types. numpy has no bfloat16: float16 arrays carry its bits.
_NUMPY_NAMES = {
    DataType.DT_FLOAT: "float32",
    DataType.DT_FLOAT16: "float16",
    DataType.DT_BF16: "float16",
    DataType.DT_INT8: "int8",
    DataType.DT_INT16: "int16",
    DataType.DT_UINT16: "uint16",
    DataType.DT_UINT8: "uint8",
    DataType.DT_INT32: "int32",
    DataType.DT_INT64: "int64",
    DataType.DT_UINT32: "uint32",
    DataType.DT_UINT64: "uint64",
    DataType.DT_BOOL: "bool_",
    DataType.DT_DOUBLE: "float64",
    DataType.DT_STRING: "bytes_",
}

python_dtype_2_dwrapper_dtype = {dtype: dtype.value for dtype in DataType}


def get_python_dtype_from_wrapper_dtype(number: int) -> DataType:
    """Return the DataType with this number. Raises ValueError for a number that is none."""
    return DataType(number)


def _load_numpy_tables() -> None:
    import numpy

    to_numpy = {dtype: getattr(numpy, name) for dtype, name in _NUMPY_NAMES.items()}
    globals().update(
        dtype_to_np_dtype=to_numpy,
        valid_np_dtypes=list(to_numpy.values()),
        np_dtype_to_dtype={
            scalar: dtype for dtype, scalar in to_numpy.items() if dtype is not DataType.DT_BF16
        },
    )


def __getattr__(name):
    if name in ("dtype_to_np_dtype", "valid_np_dtypes", "np_dtype_to_dtype"):
        _load_numpy_tables()
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
