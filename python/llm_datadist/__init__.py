"""Move the KV cache of large language models between processes.

A PROMPT process allocates caches under keys, a DECODER process links with it and pulls them:
`LLMDataDist`, its `kv_cache_manager`, and the types of their arguments. Importing this loads no
numpy.
"""

import os as _os

from llm_datadist.cache_types import (
    BlocksCacheKey,
    CacheDesc,
    CacheKey,
    CacheKeyByIdAndIndex,
    KvCache,
    Placement,
)
from llm_datadist.configs import LLMClusterInfo, LLMConfig, LlmConfig, LLMRole
from llm_datadist.data_type import DataType
from llm_datadist.kv_cache_manager import KvCacheManager
from llm_datadist.status import LLMException, LLMStatusCode, Status
from llm_datadist.tensor import Tensor, TensorDesc
from llm_datadist.transfer_types import (
    LayerSynchronizer,
    MemInfo,
    Memtype,
    RegisterMemStatus,
    TransferConfig,
    TransferWithCacheKeyConfig,
)
from llm_datadist.v2.llm_datadist import LLMDataDist

_os.environ.setdefault("AUTO_USE_UC_MEMORY", "0")

__all__ = [
    "LLMClusterInfo",
    "LLMStatusCode",
    "LLMException",
    "LLMRole",
    "LlmConfig",
    "LLMConfig",
    "DataType",
    "Status",
    "CacheDesc",
    "CacheKey",
    "CacheKeyByIdAndIndex",
    "KvCache",
    "BlocksCacheKey",
    "LLMDataDist",
    "Placement",
    "RegisterMemStatus",
    "LayerSynchronizer",
    "TransferConfig",
    "TransferWithCacheKeyConfig",
    "Memtype",
    "MemInfo",
    "TensorDesc",
    "Tensor",
    "KvCacheManager",
]

v2_list = [name for name in __all__ if name not in ("TensorDesc", "Tensor", "KvCacheManager")]
