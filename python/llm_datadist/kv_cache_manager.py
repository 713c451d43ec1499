"""The classic manager: caches of one instance, and pulls into them."""

from __future__ import annotations

from typing import List, Optional, Sequence, Union

from llm_datadist._engine import EngineHandle
from llm_datadist.cache_types import (
    INVALID_ID,
    BlocksCacheKey,
    CacheDesc,
    CacheKey,
    CacheKeyByIdAndIndex,
    KvCache,
    Placement,
)
from llm_datadist.configs import LLMRole
from llm_datadist.status import LLMException, LLMStatusCode, raise_if_false
from llm_datadist.tensor import Tensor
from llm_datadist.utils.utils import (
    check_inner,
    check_int32,
    check_int64,
    check_isinstance,
    check_list_uint64,
    check_uint32,
    check_uint64,
)

__all__ = ["KvCacheManager"]

# Kinds of keys, as the engine numbers them.
_NO_KEY = (0, 0, 0)
_REQUEST = 1
_PREFIX = 2
_BLOCKS = 3

_NOT_GIVEN = object()


class KvCacheManager:
    """Caches of an instance in classic mode. `LLMDataDist.kv_cache_manager` gives the only one.

    A PROMPT allocates caches with keys, a DECODER allocates caches and pulls into them. All calls
    may be made from several threads at once. An argument `None` that a call cannot use is an
    AttributeError where the reference of the interface says so. After `LLMDataDist.finalize` calls
    raise LLMException with LLM_ENGINE_FINALIZED.
    """

    def __init__(self, llm_engine: EngineHandle, role: LLMRole):
        self._engine = llm_engine
        self._role = role
        self._is_initialized = True

    def is_initialized(self) -> bool:
        """Return whether the instance that owns this manager is not finalized."""
        return self._is_initialized and self._engine.is_of_this_process()

    def _shut_down(self) -> None:
        self._is_initialized = False

    # ---- Allocation ------------------------------------------------------------------------------

    def allocate_cache(self, cache_desc: CacheDesc, cache_keys: Union[list, tuple] = ()) -> KvCache:
        """Allocate a contiguous cache.

        Args:
            cache_desc: placement DEVICE; `shape[0]` is the number of batch slices.
            cache_keys: names for peers, `cache_keys[i]` of batch slice i; only a PROMPT gives some.
                A key whose request id and prefix id are 2**64 - 1 skips its slice. If a key comes
                twice the last one wins.

        Returns:
            The handle. The memory is zero when it is fresh, and lives until the handle is
            deallocated and every key was pulled or removed.

        Raises:
            TypeError: an argument of the wrong type.
            LLMException: LLM_PARAM_INVALID (description, role, more keys than slices), LLM_FAILED
                (a key names another cache), LLM_DEVICE_OUT_OF_MEMORY, LLM_ENGINE_FINALIZED.
        """
        check_isinstance("cache_desc", cache_desc, CacheDesc)
        check_isinstance("cache_keys", cache_keys, (list, tuple), allow_none=False)
        check_inner("cache_keys", cache_keys, CacheKey)
        _check_allocatable(cache_desc)
        raise_if_false(
            not cache_keys or self._role is LLMRole.PROMPT,
            f"{self._role} cannot give cache_keys, only {LLMRole.PROMPT} can",
        )
        return self._allocate("allocate_cache", cache_desc, [_name_of(key) for key in cache_keys])

    def allocate_blocks_cache(
        self, cache_desc: CacheDesc, blocks_cache_key: Optional[BlocksCacheKey] = None
    ) -> KvCache:
        """Allocate a cache of blocks; `shape[0]` is their number.

        Args:
            cache_desc: placement DEVICE.
            blocks_cache_key: name for peers; a DECODER cannot give one. It ends with the handle.

        Returns:
            The handle, given back by `deallocate_cache`.

        Raises:
            As `allocate_cache`; ValueError for a key that is no uint64.
        """
        check_isinstance("cache_desc", cache_desc, CacheDesc)
        check_isinstance("blocks_cache_key", blocks_cache_key, BlocksCacheKey)
        _check_allocatable(cache_desc)
        raise_if_false(
            blocks_cache_key is None or self._role is not LLMRole.DECODER,
            f"{self._role} cannot give a blocks_cache_key",
        )
        keys = [] if blocks_cache_key is None else [_blocks_name_of(blocks_cache_key)]
        return self._allocate("allocate_blocks_cache", cache_desc, keys)

    def _allocate(self, tag: str, desc: CacheDesc, keys: list) -> KvCache:
        cache_id = self._engine.call(
            tag,
            "cache_alloc",
            desc.num_tensors,
            desc.shape,
            desc.data_type.value,
            int(desc.placement),
            keys,
        )
        try:
            addrs = self._engine.call(tag, "cache_addresses", cache_id, 0, desc.num_tensors)
            return KvCache(cache_id, desc, [addrs], self)
        except BaseException:
            self._engine.call(tag, "cache_free", cache_id)
            raise

    def deallocate_cache(self, cache: KvCache) -> None:
        """Give a cache back. A second call on the same handle does nothing.

        Returns at once, also while a pull runs: the memory goes back when keys, running transfers
        and tensors over it are gone. `cache.per_device_tensor_addrs` becomes empty.

        Raises:
            TypeError: `cache` is no KvCache.
            LLMException: LLM_PARAM_INVALID for a cpu cache.
        """
        check_isinstance("cache", cache, KvCache)
        raise_if_false(cache.cache_id != -1, "a cpu cache cannot be deallocated")
        # A handle of an earlier life of the instance: its memory went with that life, and its id
        # may name another cache now.
        is_own = cache._manager is self
        if not cache._invalidate() or not is_own:
            return
        try:
            self._engine.call("deallocate_cache", "cache_free", cache.cache_id)
        except LLMException as error:
            if error.status_code != LLMStatusCode.LLM_KV_CACHE_NOT_EXIST:
                raise

    def remove_cache_key(self, cache_key: CacheKey) -> None:
        """Remove a key: peers do not find it any more. An unknown key is no error. PROMPT only.

        The cache goes with its last key if its handle is deallocated.

        Raises:
            TypeError: `cache_key` is no CacheKey.
            LLMException: LLM_PARAM_INVALID for another role.
        """
        self._require_role(LLMRole.PROMPT, "remove_cache_key")
        check_isinstance("cache_key", cache_key, CacheKey)
        name = _name_of(cache_key)
        if name != _NO_KEY:
            self._engine.call("remove_cache_key", "key_remove", *name)

    # ---- Pulls -----------------------------------------------------------------------------------

    def pull_cache(
        self,
        cache_key: Union[CacheKey, CacheKeyByIdAndIndex],
        kv_cache: KvCache,
        batch_index: int = 0,
        size: int = -1,
        **kwargs,
    ) -> None:
        """Pull a batch slice of a peer's cache into a batch slice of `kv_cache`. DECODER only.

        A complete pull uses up a request key; one with an offset, or by prefix id, never does. A
        pull of some layers counts them, and the key goes when all were pulled. A failed pull leaves
        the destination's bytes undefined and the key in place.

        Args:
            cache_key: the source.
            kv_cache: the destination, placement DEVICE.
            batch_index: batch slice of the destination.
            size: bytes of each tensor, above 0; -1 for the destination's slice less its offset.
            src_layer_range: range of layers of the source; None or an empty range for all.
            dst_layer_range: range of layers of the destination, likewise.
            src_cache_offset: bytes to skip in the source's slice of each tensor.
            dst_cache_offset: bytes to skip in the destination's slice of each tensor.
            tensor_num_per_layer: tensors that make a layer, 2 if left out.

        Blocks until all bytes are in place, at most `sync_kv_timeout`. When it has returned or
        raised, nothing writes to the destination any more.

        Raises:
            TypeError, ValueError: an argument of the wrong type or width, a negative offset.
            LLMException: LLM_KV_CACHE_NOT_EXIST (destination given back, or source unknown at the
                peer), LLM_NOT_YET_LINK (also "peer lost"), LLM_PARAM_INVALID (role, size, key,
                ranges), LLM_WAIT_PROCESS_TIMEOUT, LLM_ENGINE_FINALIZED.
        """
        self._require_role(LLMRole.DECODER, "pull_cache")
        check_isinstance("cache_key", cache_key, (CacheKey, CacheKeyByIdAndIndex))
        check_isinstance("kv_cache", kv_cache, KvCache)
        _check_on_device(kv_cache)
        check_int64("size", size)
        check_uint32("batch_index", batch_index)
        if size != -1 and size <= 0:
            _refuse(f"size is {size}, wanted -1 or a number of bytes above 0")
        src_offset = _offset(kwargs, "src_cache_offset")
        dst_offset = _offset(kwargs, "dst_cache_offset")
        cluster_id = cache_key.cluster_id
        key, src_cache, src_batch = _source(cache_key)
        layers = _layer_arguments(kwargs)
        self._pull(
            "pull_cache",
            "pull",
            cluster_id,
            key,
            kv_cache,
            src_cache=src_cache,
            src_batch=src_batch,
            dst_batch=batch_index,
            bytes=0 if size == -1 else size,
            src_offset=src_offset or 0,
            dst_offset=dst_offset or 0,
            keep_key=src_offset is not None or dst_offset is not None,
            **layers,
        )

    def pull_blocks(
        self,
        prompt_cache_key: BlocksCacheKey,
        decoder_kv_cache: KvCache,
        prompt_blocks: List[int],
        decoder_blocks: List[int],
        **kwargs,
    ) -> None:
        """Pull blocks: block `prompt_blocks[i]` of the peer goes to `decoder_blocks[i]` here.

        DECODER only. The key stays. If a destination comes twice, the last pair wins.

        Args:
            prompt_cache_key: the source.
            decoder_kv_cache: the destination, placement DEVICE, with blocks of the same size.
            prompt_blocks, decoder_blocks: non-empty lists of equal length.
            src_layer_range, dst_layer_range, tensor_num_per_layer: as in `pull_cache`.

        Blocks as `pull_cache` does.

        Raises:
            TypeError, ValueError: an argument of the wrong type, a negative block.
            LLMException: as `pull_cache`; LLM_PARAM_INVALID also for unequal lists, a block out of
                range on either side, and block sizes that differ. Nothing was written then.
        """
        self._require_role(LLMRole.DECODER, "pull_blocks")
        check_isinstance("prompt_cache_key", prompt_cache_key, BlocksCacheKey)
        check_isinstance("decoder_kv_cache", decoder_kv_cache, KvCache)
        for name, blocks in (("prompt_blocks", prompt_blocks), ("decoder_blocks", decoder_blocks)):
            check_isinstance(name, blocks, list, allow_none=False)
            check_inner(name, blocks, int)
        _check_on_device(decoder_kv_cache)
        if not prompt_blocks or len(prompt_blocks) != len(decoder_blocks):
            _refuse(
                f"prompt_blocks has {len(prompt_blocks)} entries, decoder_blocks "
                f"{len(decoder_blocks)}, wanted equally many and at least one",
            )
        name = _blocks_name_of(prompt_cache_key)
        layers = _layer_arguments(kwargs)
        try:
            self._pull(
                "pull_blocks",
                "pull_blocks",
                prompt_cache_key.cluster_id,
                name,
                decoder_kv_cache,
                prompt_blocks,
                decoder_blocks,
                **layers,
            )
        except ValueError:
            # The extension checks the lists on its way, faster; only the names are not its own.
            check_list_uint64("prompt_blocks", prompt_blocks)
            check_list_uint64("decoder_blocks", decoder_blocks)
            raise

    def _pull(self, tag, method, cluster_id, key, cache, *args, **kwargs) -> None:
        cache_id = self._id_of(cache, tag)
        busy = self._engine.busy_links
        busy.enter(cluster_id)
        try:
            self._engine.call(tag, method, cluster_id, key, cache_id, *args, **kwargs)
        finally:
            busy.leave(cluster_id)

    @staticmethod
    def check_cache_key(cache_key: CacheKey) -> None:
        """Raise LLM_PARAM_INVALID unless exactly one of request id and prefix id is valid."""
        has_request = cache_key.req_id != INVALID_ID
        has_prefix = cache_key.prefix_id != INVALID_ID
        if has_request == has_prefix:
            _refuse(
                f"{cache_key} has {'both' if has_request else 'neither'} a request id and a prefix "
                "id, wanted one of them",
            )

    # ---- Access ----------------------------------------------------------------------------------

    def get_cache_tensors(self, cache: KvCache, tensor_index: int = 0) -> List[Tensor]:
        """Return one tensor of a cache for each device, over the cache's memory.

        The tensors keep the memory, also after the cache is deallocated and the instance finalized.

        Args:
            cache: a cache of this manager.
            tensor_index: index from 0 to below `num_tensors`.

        Raises:
            TypeError, ValueError: an argument of the wrong type or width.
            LLMException: LLM_PARAM_INVALID (index), LLM_KV_CACHE_NOT_EXIST (given back).
        """
        check_isinstance("cache", cache, KvCache)
        check_int32("tensor_index", tensor_index)
        desc = cache.cache_desc
        raise_if_false(
            0 <= tensor_index < desc.num_tensors,
            f"tensor_index is {tensor_index}, the cache has {desc.num_tensors} tensors",
        )
        cache_id = self._id_of(cache, "get_cache_tensors")
        dtype = desc.data_type.value
        view = self._engine.call(
            "get_cache_tensors", "view", cache_id, 0, tensor_index, cache._dims, dtype
        )
        return [Tensor.from_tensor_tuple((view, dtype, cache._dims))]

    # ---- Helpers ---------------------------------------------------------------------------------

    def _require_role(self, role: LLMRole, tag: str) -> None:
        if self._role is not role:
            _refuse(f"{tag} is for {role}, this instance is {self._role}")

    def _id_of(self, cache: KvCache, tag: str) -> int:
        """Return the id of a cache that this manager holds."""
        if not cache._is_valid or cache._manager is not self:
            raise LLMException(
                f"{tag} failed, error code is {LLMStatusCode.LLM_KV_CACHE_NOT_EXIST}, cache "
                f"{cache.cache_id} was given back or belongs to another instance.",
                status_code=LLMStatusCode.LLM_KV_CACHE_NOT_EXIST,
            )
        return cache.cache_id


def _refuse(text: str) -> None:
    """Raise LLM_PARAM_INVALID. Pulls make the text only when it is needed."""
    raise_if_false(False, text)


def _check_allocatable(desc: CacheDesc) -> None:
    raise_if_false(desc.num_tensors > 0, "num_tensors is 0, wanted at least 1")
    raise_if_false(
        desc.placement is Placement.DEVICE,
        f"placement is {desc.placement}, wanted {Placement.DEVICE}",
    )


def _check_on_device(cache: KvCache) -> None:
    placement = cache.cache_desc.placement
    if placement is not Placement.DEVICE:
        _refuse(f"the cache has placement {placement}, wanted {Placement.DEVICE}")


def _name_of(key: CacheKey) -> tuple:
    """Return (kind, id, model id): the prefix if there is one, else the request."""
    if key.prefix_id != INVALID_ID:
        return _PREFIX, key.prefix_id, key.model_id
    if key.req_id != INVALID_ID:
        return _REQUEST, key.req_id, key.model_id
    return _NO_KEY


def _blocks_name_of(key: BlocksCacheKey) -> tuple:
    check_uint64("cluster_id", key.cluster_id)
    check_uint64("model_id", key.model_id)
    return _BLOCKS, 0, key.model_id


def _source(key: Union[CacheKey, CacheKeyByIdAndIndex]) -> tuple:
    """Return (name or None, cache id, batch index) of the source of a pull."""
    if isinstance(key, CacheKey):
        KvCacheManager.check_cache_key(key)
        return _name_of(key), 0, 0
    # No cache has id 0, which the engine takes for "by name"; -1 is as unknown to the peer.
    return None, key.cache_id or -1, key.batch_index


def _offset(kwargs: dict, name: str) -> Optional[int]:
    """Return a byte offset out of the keyword arguments, None if it is not given."""
    offset = kwargs.get(name)
    if offset is not None:
        check_int64(name, offset)
        if offset < 0:
            raise ValueError(f"{name} is out of range, {offset} is negative")
    return offset


def _layer_arguments(kwargs: dict) -> dict:
    """Turn the keyword arguments about layers into those of the engine."""
    per_layer = kwargs.get("tensor_num_per_layer", _NOT_GIVEN)
    if per_layer is _NOT_GIVEN:
        per_layer = 0  # 2, without asking that there are so many tensors
    else:
        check_uint32("tensor_num_per_layer", per_layer)
        raise_if_false(per_layer >= 1, "tensor_num_per_layer is 0, wanted 1 or above")
    return {
        "tensors_per_layer": per_layer,
        "src_layers": _layers("src_layer_range", kwargs.get("src_layer_range")),
        "dst_layers": _layers("dst_layer_range", kwargs.get("dst_layer_range")),
    }


def _layers(name: str, layers: Optional[range]) -> Sequence[int]:
    """Return (first, count); count 0 stands for all. An empty range counts as not given."""
    check_isinstance(name, layers, range)
    if not layers:
        return 0, 0
    if layers.step != 1 or layers.start < 0:
        _refuse(f"{name} is {layers}, wanted step 1 and a start of 0 or above")
    check_uint32(name, layers.start)
    check_uint32(name, layers.stop - 1)
    return layers.start, len(layers)
