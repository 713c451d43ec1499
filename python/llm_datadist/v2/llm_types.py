"""Types of the cache and transfer interfaces, under the path that other code imports from."""

from llm_datadist.cache_types import (
    BlocksCacheKey,
    CacheDesc,
    CacheKey,
    CacheKeyByIdAndIndex,
    KvCache,
    Placement,
)
from llm_datadist.transfer_types import (
    LayerSynchronizer,
    MemInfo,
    Memtype,
    RegisterMemStatus,
    TransferConfig,
    TransferWithCacheKeyConfig,
    check_layer_range,
    int_to_mem_status_dict,
)

__all__ = [
    "BlocksCacheKey",
    "CacheDesc",
    "CacheKey",
    "CacheKeyByIdAndIndex",
    "KvCache",
    "LayerSynchronizer",
    "MemInfo",
    "Memtype",
    "Placement",
    "RegisterMemStatus",
    "TransferConfig",
    "TransferWithCacheKeyConfig",
    "check_layer_range",
    "int_to_mem_status_dict",
]
