"""Descriptions of caches, the keys that name them, and the handle of an allocated one."""

from __future__ import annotations

from typing import List, Optional, Sequence, Union

from llm_datadist._enum import NamedIntEnum
from llm_datadist.data_type import ELEMENT_BYTES, DataType
from llm_datadist.status import raise_if_false, raise_if_true
from llm_datadist.utils import log
from llm_datadist.utils.utils import (
    INT64_MAX,
    UINT64_MAX,
    check_inner,
    check_int32,
    check_int64,
    check_isinstance,
    check_uint32,
    check_uint64,
)

INVALID_ID = UINT64_MAX  # a request or prefix id that names nothing


class Placement(NamedIntEnum):
    """Where a cache's memory is."""

    HOST = 0
    DEVICE = 1


def calc_tensor_size(shape: Sequence[int], data_type: DataType) -> int:
    """Return the bytes of one tensor of this shape.

    Raises LLMException with LLM_PARAM_INVALID if a dimension is below 1 or the size exceeds int64.
    """
    size = ELEMENT_BYTES[data_type]
    for dim in shape:
        raise_if_false(dim > 0, f"shape {shape} has dimension {dim}, wanted at least 1")
        size *= dim
    raise_if_false(size <= INT64_MAX, f"a tensor of shape {shape} exceeds {INT64_MAX} bytes")
    return size


class CacheDesc:
    """Shape of a cache: `num_tensors` tensors that all look alike.

    Args:
        num_tensors: tensors per device, uint32.
        shape: list or tuple of int64. Dimension 0 is the batch of a contiguous cache, or the number
            of blocks of a blocks cache, whatever `batch_dim_index` says.
        data_type: type of one element.
        placement: HOST or DEVICE.
        batch_dim_index: which dimension `batch_size` reports.
        seq_len_dim_index: kept, not used; -1 for none.
        kv_tensor_format: kept, not used.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: `num_tensors`, `seq_len_dim_index` or a dimension exceeds its width.
        LLMException: LLM_PARAM_INVALID, a dimension index outside the shape.
    """

    def __init__(
        self,
        num_tensors: int,
        shape: Union[list, tuple],
        data_type: DataType,
        placement: Placement = Placement.DEVICE,
        batch_dim_index: int = 0,
        seq_len_dim_index: int = -1,
        kv_tensor_format: Optional[str] = None,
    ):
        check_uint32("num_tensors", num_tensors)
        check_isinstance("shape", shape, (list, tuple), allow_none=False)
        check_inner("shape", shape, int)
        check_isinstance("data_type", data_type, DataType)
        check_isinstance("placement", placement, Placement)
        check_isinstance("batch_dim_index", batch_dim_index, int, allow_none=False)
        raise_if_false(
            0 <= batch_dim_index < len(shape),
            f"batch_dim_index is {batch_dim_index}, the shape has {len(shape)} dimensions",
        )
        check_int32("seq_len_dim_index", seq_len_dim_index)
        raise_if_false(
            seq_len_dim_index == -1 or 0 <= seq_len_dim_index < len(shape),
            f"seq_len_dim_index is {seq_len_dim_index}, the shape has {len(shape)} dimensions",
        )
        check_isinstance("kv_tensor_format", kv_tensor_format, str)
        for dim in shape:
            check_int64("shape", dim)
        self._num_tensors = num_tensors
        self._shape = shape
        self._data_type = data_type
        self._placement = placement
        self._batch_dim_index = batch_dim_index
        self._batch_size = shape[batch_dim_index]
        self._seq_len_dim_index = seq_len_dim_index
        self._kv_tensor_format = kv_tensor_format
        self._size = None

    @property
    def num_tensors(self) -> int:
        """Tensors per device."""
        return self._num_tensors

    @property
    def shape(self) -> Union[list, tuple]:
        """Shape of one tensor: the object that was passed."""
        return self._shape

    @property
    def data_type(self) -> DataType:
        """Type of one element."""
        return self._data_type

    @property
    def placement(self) -> Placement:
        """Where the memory is."""
        return self._placement

    @property
    def batch_dim(self) -> int:
        """Index of the batch dimension."""
        return self._batch_dim_index

    @property
    def batch_size(self) -> int:
        """Size of the batch dimension when the description was made."""
        return self._batch_size

    @property
    def seq_len_dim_index(self) -> int:
        """Index of the dimension of the sequence, -1 for none."""
        return self._seq_len_dim_index

    @property
    def kv_tensor_format(self) -> Optional[str]:
        """Name of the layout, as passed."""
        return self._kv_tensor_format

    @property
    def size(self) -> int:
        """Bytes of one tensor.

        Raises LLMException with LLM_PARAM_INVALID if a dimension is below 1 or the size exceeds
        int64.
        """
        if self._size is None:
            self._size = calc_tensor_size(self._shape, self._data_type)
        return self._size

    def update_dim(self, dim_index: int, dim_value: int) -> None:
        """Set one dimension in the shape object; `batch_size` stays. TypeError for a tuple."""
        self._shape[dim_index] = dim_value
        self._size = None

    def __repr__(self):
        return (
            f"CacheDesc(num_tensors={self._num_tensors}, shape={self._shape}, "
            f"data_type={self._data_type}, placement={self._placement}, "
            f"batch_dim_index={self._batch_dim_index}, "
            f"seq_len_dim_index={self._seq_len_dim_index},"
            f"kv_tensor_format={self._kv_tensor_format})"
        )


def _bind(args: tuple, kwargs: dict, names: Sequence[str]) -> dict:
    """Bind arguments to `names`; positional ones win over the same name as a keyword."""
    return {**kwargs, **dict(zip(names, args))}


def _take_cluster_id(values: dict):
    """Take the cluster id out of bound arguments, under either of its two spellings."""
    raise_if_false(
        "cluster_id" in values or "prompt_cluster_id" in values, "Param cluster_id is required"
    )
    other = values.pop("prompt_cluster_id", None)
    return values.pop("cluster_id", other)


def _refuse_unknown(values: dict) -> None:
    raise_if_true(values, f"Unsupported param {sorted(values)}")


class CacheKey:
    """Name of one batch slice: `CacheKey(cluster_id, req_id, model_id=0, prefix_id=UINT64_MAX)`.

    `prompt_cluster_id` is another keyword for `cluster_id`. The identity is (req_id, model_id), or
    (prefix_id, model_id) if a prefix id is given; 2**64 - 1 stands for "no id". A key with neither
    is a placeholder in an allocation.

    Raises:
        LLMException: LLM_PARAM_INVALID, too many, missing or unknown arguments.
        TypeError, ValueError: a value that is no uint64.
    """

    def __init__(self, *args, **kwargs):
        raise_if_true(
            len(args) + len(kwargs) > 4,
            f"Param num is over limit, got {len(args) + len(kwargs)}, at most 4",
        )
        values = _bind(args, kwargs, ("cluster_id", "req_id", "model_id", "prefix_id"))
        self._cluster_id = _take_cluster_id(values)
        raise_if_false("req_id" in values, "Param req_id is required")
        self._req_id = values.pop("req_id")
        self._model_id = values.pop("model_id", 0)
        self._prefix_id = values.pop("prefix_id", INVALID_ID)
        _refuse_unknown(values)
        check_uint64("cluster_id", self._cluster_id)
        check_uint64("req_id", self._req_id)
        check_uint64("model_id", self._model_id)
        check_uint64("prefix_id", self._prefix_id)

    @property
    def prompt_cluster_id(self) -> int:
        """Cluster that owns the cache; same as `cluster_id`."""
        return self._cluster_id

    @property
    def cluster_id(self) -> int:
        """Cluster that owns the cache."""
        return self._cluster_id

    @property
    def req_id(self) -> int:
        """Request id, 2**64 - 1 for none."""
        return self._req_id

    @property
    def prefix_id(self) -> int:
        """Prefix id, 2**64 - 1 for none."""
        return self._prefix_id

    @property
    def model_id(self) -> int:
        """Model id."""
        return self._model_id

    def __repr__(self):
        return (
            f"CacheKey(cluster_id={self._cluster_id}, req_id={self._req_id}, "
            f"prefix_id={self._prefix_id}, model_id={self._model_id})"
        )


class CacheKeyByIdAndIndex:
    """Name of one batch slice by the id of its cache.

    Args:
        cluster_id: cluster that owns the cache, uint64.
        cache_id: id of the cache there, int64.
        batch_index: batch index there, uint32.

    Raises:
        TypeError, ValueError: a value of the wrong type or width.
    """

    def __init__(self, cluster_id: int, cache_id: int, batch_index: int = 0):
        check_uint64("cluster_id", cluster_id)
        check_int64("cache_id", cache_id)
        check_uint32("batch_index", batch_index)
        self._cluster_id = cluster_id
        self._cache_id = cache_id
        self._batch_index = batch_index

    @property
    def cluster_id(self) -> int:
        """Cluster that owns the cache."""
        return self._cluster_id

    @property
    def cache_id(self) -> int:
        """Id of the cache at its owner."""
        return self._cache_id

    @property
    def batch_index(self) -> int:
        """Batch index at the owner."""
        return self._batch_index

    def __repr__(self):
        return (
            f"CacheKeyByIdAndIndex(cluster_id={self._cluster_id}, cache_id={self._cache_id}, "
            f"batch_index={self._batch_index})"
        )


class BlocksCacheKey:
    """Name of a blocks cache: `BlocksCacheKey(cluster_id, model_id=0)`.

    `prompt_cluster_id` is another keyword for `cluster_id`. The width of the two values is checked
    when the key is used.

    Raises:
        LLMException: LLM_PARAM_INVALID, too many, missing or unknown arguments.
        TypeError: a value that is no int.
    """

    def __init__(self, *args, **kwargs):
        raise_if_true(
            len(args) + len(kwargs) > 2,
            f"Param num is over limit, got {len(args) + len(kwargs)}, at most 2",
        )
        values = _bind(args, kwargs, ("cluster_id", "model_id"))
        self._spelling = "cluster_id" if "cluster_id" in values else "prompt_cluster_id"
        self._cluster_id = _take_cluster_id(values)
        self._model_id = values.pop("model_id", 0)
        _refuse_unknown(values)
        check_isinstance("The first param cluster_id", self._cluster_id, int)
        check_isinstance("The second param model_id", self._model_id, int)

    @property
    def prompt_cluster_id(self) -> int:
        """Cluster that owns the cache; same as `cluster_id`."""
        return self._cluster_id

    @property
    def cluster_id(self) -> int:
        """Cluster that owns the cache."""
        return self._cluster_id

    @property
    def model_id(self) -> int:
        """Model id."""
        return self._model_id

    def __repr__(self):
        return f"BlocksCacheKey({self._spelling}={self._cluster_id}, model_id={self._model_id})"


def _check_cpu_addresses(addrs: list, num_tensors: int) -> None:
    check_isinstance("addrs", addrs, list, allow_none=False)
    raise_if_false(addrs, "addrs is empty")
    check_inner("addrs", addrs, (int, list))
    for one in addrs:
        if isinstance(one, list):
            check_inner("addrs", one, int)
            raise_if_false(
                len(one) == num_tensors,
                f"addrs has {len(one)} addresses for a device, the cache has {num_tensors} tensors",
            )
    raise_if_false(
        len({isinstance(one, list) for one in addrs}) == 1,
        "elements of addrs should be consistent: all int, or all list",
    )
    raise_if_false(
        isinstance(addrs[0], list) or len(addrs) == num_tensors,
        f"addrs has {len(addrs)} addresses, the cache has {num_tensors} tensors",
    )


class KvCache:
    """A cache of this process, made by KvCacheManager or by `create_cpu_cache`.

    A handle that is dropped gives the cache back, as `KvCacheManager.deallocate_cache` does.
    """

    def __init__(
        self, cache_id: int, cache_desc: CacheDesc, per_device_tensor_addrs, kv_cache_manager
    ):
        check_int64("cache_id", cache_id)
        self._cache_id = cache_id
        self._cache_desc = cache_desc
        self._addrs = per_device_tensor_addrs
        self._manager = kv_cache_manager
        self._is_valid = True
        # What was allocated, whatever becomes of the caller's description.
        self._dims = tuple(cache_desc.shape)

    @classmethod
    def create_cpu_cache(cls, cache_desc: CacheDesc, addrs: list) -> KvCache:
        """Make a handle for host memory of the caller, as an operand of swaps.

        Args:
            cache_desc: description with placement HOST.
            addrs: one address per tensor, or a list of such lists, one per device.

        Returns:
            A handle with id -1. It does not own the memory, which must outlive it.

        Raises:
            TypeError: an argument or address of the wrong type.
            LLMException: LLM_PARAM_INVALID, placement other than HOST, or a wrong number of
                addresses.
        """
        check_isinstance("cache_desc", cache_desc, CacheDesc)
        raise_if_false(
            cache_desc.placement == Placement.HOST,
            f"placement is {cache_desc.placement}, a cpu cache needs {Placement.HOST}",
        )
        _check_cpu_addresses(addrs, cache_desc.num_tensors)
        per_device = addrs if isinstance(addrs[0], list) else [addrs]
        return cls(-1, cache_desc, per_device, None)

    @property
    def cache_id(self) -> int:
        """Id of the cache, from 1; -1 for a cpu cache."""
        return self._cache_id

    @property
    def cache_desc(self) -> CacheDesc:
        """The description that the cache was made with."""
        return self._cache_desc

    @property
    def per_device_tensor_addrs(self) -> List[List[int]]:
        """For each device, the address of each tensor; empty once the cache is given back."""
        if self._manager is not None and not self._manager.is_initialized():
            return []
        return self._addrs

    def _invalidate(self) -> bool:
        """Mark the handle as given back; return whether it was not yet."""
        was_valid = self._is_valid
        self._is_valid = False
        self._addrs = []
        return was_valid

    def __repr__(self):
        return f"KvCache(cache_id = {self._cache_id}, num_devices = {len(self._addrs)})"

    def __del__(self):
        # Runs anywhere, also while the interpreter ends: it may fail, but never raise.
        try:
            if self._is_valid and self._manager is not None and self._manager.is_initialized():
                self._manager.deallocate_cache(self)
        except Exception as error:
            try:
                log.warn("cache %s was not given back: %s", self._cache_id, error)
            except Exception:
                pass
