"""Where layers of a cache are sent to, who says when they are ready, and registered memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Optional, Sequence, Union

from llm_datadist.cache_types import BlocksCacheKey, CacheKeyByIdAndIndex
from llm_datadist.status import raise_if_false
from llm_datadist.utils.utils import check_inner, check_isinstance, check_uint32, check_uint64


class RegisterMemStatus(Enum):
    """How far the exchange of registered memory with a group has come."""

    OK = 0
    PREPARING = 1
    FAILED = 2


int_to_mem_status_dict = {status.value: status for status in RegisterMemStatus}


class Memtype(Enum):
    """Kind of registered memory. Numbered the other way round than Placement."""

    MEM_TYPE_DEVICE = 0
    MEM_TYPE_HOST = 1


class MemInfo:
    """A range of memory: its kind, its address, and its bytes. TypeError for wrong types."""

    def __init__(self, mem_type: Memtype, addr: int, size: int):
        check_isinstance("mem_type", mem_type, Memtype)
        check_isinstance("addr", addr, int)
        check_isinstance("size", size, int)
        self._mem_type = mem_type
        self._addr = addr
        self._size = size

    @property
    def mem_type(self) -> Memtype:
        """Kind of memory."""
        return self._mem_type

    @property
    def addr(self) -> int:
        """First address."""
        return self._addr

    @property
    def size(self) -> int:
        """Bytes."""
        return self._size

    def __repr__(self):
        return f"MemInfo(mem_type={self._mem_type}, addr={self._addr}, size={self._size})"


class LayerSynchronizer(ABC):
    """Says when a layer is ready to be sent."""

    @abstractmethod
    def synchronize_layer(self, layer_index: int, timeout_in_millis: Optional[int]) -> bool:
        """Wait until layer `layer_index` of the source is complete; return False to give up.

        `timeout_in_millis` is always None.
        """


def check_layer_range(name: str, layer_range: Optional[range], allow_none: bool = True) -> None:
    """Raise unless `layer_range` is a range of step 1 with 0 <= start < stop (or None if allowed).

    TypeError for another type, LLMException with LLM_PARAM_INVALID for another range.
    """
    check_isinstance(name, layer_range, range, allow_none=allow_none)
    if layer_range is not None:
        raise_if_false(
            layer_range.step == 1 and 0 <= layer_range.start < layer_range.stop,
            f"{name} is {layer_range}, wanted step 1 and 0 <= start < stop",
        )


class TransferConfig:
    """One destination of a layer-wise transfer, by raw addresses.

    Args:
        dst_cluster_id: cluster that receives, uint64.
        dst_addrs: list or tuple of uint64 addresses there, two per layer.
        src_layer_range: layers to send, None for all.
        src_batch_index: batch index to send, uint32.

    Raises:
        TypeError, ValueError: a value of the wrong type or width.
        LLMException: LLM_PARAM_INVALID, a range that is not 0 <= start < stop with step 1.

    The setters check in the same way.
    """

    def __init__(
        self,
        dst_cluster_id: int,
        dst_addrs: Union[list, tuple],
        src_layer_range: Optional[range] = None,
        src_batch_index: int = 0,
    ):
        self.dst_cluster_id = dst_cluster_id
        self.dst_addrs = dst_addrs
        self.src_layer_range = src_layer_range
        self.src_batch_index = src_batch_index
        self.dst_layer_range = None

    @property
    def dst_cluster_id(self) -> int:
        """Cluster that receives."""
        return self._dst_cluster_id

    @dst_cluster_id.setter
    def dst_cluster_id(self, value: int) -> None:
        check_uint64("dst_cluster_id", value)
        self._dst_cluster_id = value

    @property
    def dst_addrs(self) -> Sequence[int]:
        """Addresses at the receiver."""
        return self._dst_addrs

    @dst_addrs.setter
    def dst_addrs(self, value: Union[list, tuple]) -> None:
        check_isinstance("dst_addrs", value, (list, tuple), allow_none=False)
        check_inner("dst_addrs", value, int)
        for addr in value:
            check_uint64("dst_addrs", addr)
        self._dst_addrs = value

    @property
    def src_layer_range(self) -> Optional[range]:
        """Layers to send, None for all."""
        return self._src_layer_range

    @src_layer_range.setter
    def src_layer_range(self, value: Optional[range]) -> None:
        check_layer_range("src_layer_range", value)
        self._src_layer_range = value

    @property
    def src_batch_index(self) -> int:
        """Batch index to send."""
        return self._src_batch_index

    @src_batch_index.setter
    def src_batch_index(self, value: int) -> None:
        check_uint32("src_batch_index", value)
        self._src_batch_index = value

    def __repr__(self):
        return (
            f"TransferConfig(dst_cluster_id={self._dst_cluster_id}, dst_addrs={self._dst_addrs}, "
            f"src_layer_range={self._src_layer_range}, src_batch_index={self._src_batch_index})"
        )


class TransferWithCacheKeyConfig:
    """One destination of a layer-wise transfer, by the key of a cache there.

    Args:
        cache_key: BlocksCacheKey or CacheKeyByIdAndIndex of the destination.
        src_layer_range: layers to send.
        dst_layer_range: layers they become, equally many.
        src_batch_index: batch index to send, uint32; 0 with a BlocksCacheKey.

    Raises:
        TypeError, ValueError: a value of the wrong type or width.
        LLMException: LLM_PARAM_INVALID, a range that is not 0 <= start < stop with step 1, ranges
            of unequal length, a batch index with a BlocksCacheKey.

    The setters check the type and form of what they set.
    """

    def __init__(
        self,
        cache_key: Union[BlocksCacheKey, CacheKeyByIdAndIndex],
        src_layer_range: Optional[range] = None,
        dst_layer_range: Optional[range] = None,
        src_batch_index: int = 0,
    ):
        self.cache_key = cache_key
        self.src_layer_range = src_layer_range
        self.dst_layer_range = dst_layer_range
        raise_if_false(
            len(src_layer_range) == len(dst_layer_range),
            f"src_layer_range {src_layer_range} and dst_layer_range {dst_layer_range} differ in "
            "length",
        )
        check_uint32("src_batch_index", src_batch_index)
        self.src_batch_index = src_batch_index

    @property
    def cache_key(self) -> Union[BlocksCacheKey, CacheKeyByIdAndIndex]:
        """Key of the destination. Setting it sets `dst_cluster_id` too."""
        return self._cache_key

    @cache_key.setter
    def cache_key(self, value: Union[BlocksCacheKey, CacheKeyByIdAndIndex]) -> None:
        check_isinstance(
            "cache_key", value, (BlocksCacheKey, CacheKeyByIdAndIndex), allow_none=False
        )
        self._cache_key = value
        self.dst_cluster_id = value.cluster_id

    @property
    def src_layer_range(self) -> range:
        """Layers to send."""
        return self._src_layer_range

    @src_layer_range.setter
    def src_layer_range(self, value: range) -> None:
        check_layer_range("src_layer_range", value, allow_none=False)
        self._src_layer_range = value

    @property
    def dst_layer_range(self) -> range:
        """Layers at the receiver."""
        return self._dst_layer_range

    @dst_layer_range.setter
    def dst_layer_range(self, value: range) -> None:
        check_layer_range("dst_layer_range", value, allow_none=False)
        self._dst_layer_range = value

    @property
    def src_batch_index(self) -> int:
        """Batch index to send."""
        return self._src_batch_index

    @src_batch_index.setter
    def src_batch_index(self, value: int) -> None:
        raise_if_false(
            not isinstance(self._cache_key, BlocksCacheKey) or value == 0,
            f"src_batch_index is {value}, a BlocksCacheKey needs 0",
        )
        check_uint32("src_batch_index", value)
        self._src_batch_index = value

    def __repr__(self):
        return (
            f"TransferWithCacheKeyConfig(cache_key={self._cache_key}, "
            f"src_layer_range={self._src_layer_range}, dst_layer_range={self._dst_layer_range}, "
            f"src_batch_index={self._src_batch_index})"
        )
