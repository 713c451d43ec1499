"""Tensors: direct access to the memory of a cache, or a copy of a numpy array.

Importing this loads no numpy; the calls that make or take arrays do.
"""

from __future__ import annotations

from typing import List, Optional, Union

from llm_datadist._extension import _datadist
from llm_datadist.data_type import DataType
from llm_datadist.utils.utils import check_inner, check_isinstance


class TensorDesc:
    """Element type and shape of a tensor.

    Args:
        dtype: type of one element.
        shape: list or tuple of int.

    Raises:
        TypeError: an argument of the wrong type.
    """

    def __init__(self, dtype: DataType, shape: Union[list, tuple]):
        check_isinstance("dtype", dtype, DataType, allow_none=False)
        check_isinstance("shape", shape, (list, tuple), allow_none=False)
        check_inner("shape", shape, int)
        self._dtype = dtype
        self._shape = list(shape)

    @property
    def dtype(self) -> DataType:
        """Type of one element."""
        return self._dtype

    @property
    def shape(self) -> List[int]:
        """A new list of the dimensions."""
        return list(self._shape)

    def __str__(self):
        return f"TensorDesc(dtype={self._dtype}, shape={self._shape})"


class Tensor(_datadist.TensorBase):
    """A tensor, made from a numpy array or another tensor (copied), or over a cache (shared).

    It is a buffer: `memoryview(tensor)`, `numpy.asarray(tensor)` and DLPack give its memory
    writable, in its shape, without a copy. BF16 has the buffer format "H". A tensor over a cache
    keeps that memory, also after the cache and the instance are gone.

    Args:
        data: C-contiguous numpy array, or a Tensor.
        tensor_desc: wanted type and shape; None takes those of the array. A float16 array with
            DT_BF16 carries raw bits. Not used when `data` is a Tensor.

    Raises:
        TypeError: an argument of the wrong type.
        RuntimeError: an array that does not fit the description, has a type that no tensor has, or
            is not C-contiguous.
    """

    def __init__(self, data, tensor_desc: Optional[TensorDesc] = None):
        import numpy

        check_isinstance("tensor_desc", tensor_desc, TensorDesc)
        check_isinstance("data", data, (numpy.ndarray, Tensor), allow_none=False)
        if isinstance(data, Tensor):
            self._desc = data._desc
            self._view = numpy.array(data._view, order="C")
        else:
            self._desc = _describe(data, tensor_desc)
            self._view = _copy(data, self._desc.dtype)
        self._is_shared = False

    @staticmethod
    def from_tensor_tuple(tensor_tuple) -> Tensor:
        """Make a tensor from (buffer, number of the data type, dims). For internal use."""
        view, dtype, dims = tensor_tuple
        tensor = Tensor.__new__(Tensor)
        tensor._desc = TensorDesc(DataType(dtype), dims)
        tensor._view = view
        tensor._is_shared = True
        return tensor

    def numpy(self, copy: bool = False):
        """Return the tensor as a numpy array in its shape.

        Args:
            copy: False for a read-only array over the tensor's memory, True for a writable copy.

        Returns:
            An array of the mapped type. BF16 is widened to float32, which is a copy in any case
            (read-only with copy=False). DT_STRING becomes an array of str.

        Raises:
            TypeError: `copy` is no bool.
            RuntimeError: DT_STRING with copy=False.
        """
        import numpy

        check_isinstance("copy", copy, bool, allow_none=False)
        if self._desc.dtype is DataType.DT_STRING:
            if not copy:
                raise RuntimeError("a string tensor has no array form; ask for a copy")
            return self._strings(numpy)
        array = numpy.asarray(memoryview(self))
        if self._desc.dtype is DataType.DT_BF16:
            array = (array.astype(numpy.uint32) << 16).view(numpy.float32)
        elif copy:
            return numpy.array(array, order="C")
        array.flags.writeable = copy
        return array

    def _strings(self, numpy):
        array = numpy.asarray(self._view)
        if array.dtype.kind == "U":
            return array.copy()
        return numpy.char.decode(array, "utf-8", "replace")  # bytes, padded with zeros

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """Export the memory by DLPack; arguments as in the array API standard.

        Raises:
            BufferError: a copied array of a type that DLPack cannot name (BF16, DT_STRING).
        """
        given = {
            "stream": stream,
            "max_version": max_version,
            "dl_device": dl_device,
            "copy": copy,
        }
        if not self._is_shared:
            if self._desc.dtype in (DataType.DT_BF16, DataType.DT_STRING):
                raise BufferError(f"a copied array of {self._desc.dtype} has no DLPack form")
            given = {name: value for name, value in given.items() if value is not None}
        return self._view.__dlpack__(**given)

    def __dlpack_device__(self):
        """Return (1, 0): memory of the host."""
        return self._view.__dlpack_device__()

    def __str__(self):
        array = self.numpy(copy=self._desc.dtype is DataType.DT_STRING)
        return f"Tensor({array},tensor_desc={self._desc})"


def _describe(array, wanted: Optional[TensorDesc]) -> TensorDesc:
    """Return the description of an array, or `wanted` if the array fits it."""
    from llm_datadist.data_type import dtype_to_np_dtype

    if not array.flags.c_contiguous:
        raise RuntimeError("the array is not C-contiguous")
    is_text = array.dtype.kind in "SU"
    if wanted is None:
        found = DataType.DT_STRING if is_text else _data_type(array.dtype)
        return TensorDesc(found, list(array.shape))
    if list(array.shape) != wanted.shape:
        raise RuntimeError(f"the array has shape {list(array.shape)}, wanted {wanted.shape}")
    if wanted.dtype is DataType.DT_STRING:
        fits = is_text
    else:
        fits = array.dtype == dtype_to_np_dtype[wanted.dtype]
    if not fits:
        raise RuntimeError(f"the array has numpy type {array.dtype}, wanted {wanted.dtype}")
    return wanted


def _data_type(numpy_dtype) -> DataType:
    from llm_datadist.data_type import np_dtype_to_dtype

    for scalar, dtype in np_dtype_to_dtype.items():
        if numpy_dtype == scalar:  # not a look-up: numpy has several scalars of one type
            return dtype
    raise RuntimeError(f"no tensor has elements of numpy type {numpy_dtype}")


def _copy(array, dtype: DataType):
    """Copy an array; bits of BF16 become uint16, so that the buffer format is "H"."""
    import numpy

    copied = numpy.array(array, order="C")
    return copied.view(numpy.uint16) if dtype is DataType.DT_BF16 else copied
