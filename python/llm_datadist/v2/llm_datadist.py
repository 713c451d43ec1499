"""LLMDataDist: one participant, its options, its links, and the manager of its caches."""

from __future__ import annotations

import atexit
import os
import threading
from typing import List, Optional, Sequence, Tuple

from llm_datadist import _options
from llm_datadist._classic_links import ClassicLinks
from llm_datadist._engine import EngineHandle
from llm_datadist.configs import LLMClusterInfo, LLMRole
from llm_datadist.kv_cache_manager import KvCacheManager
from llm_datadist.status import (
    LLMException,
    LLMStatusCode,
    classic_status,
    raise_if_false,
    raise_if_true,
)
from llm_datadist.utils import log
from llm_datadist.utils.utils import check_inner, check_int32, check_isinstance, check_uint64

__all__ = ["LLMDataDist"]


class LLMDataDist:
    """One participant of a cluster of prefill (PROMPT) and decode (DECODER) processes.

    Any number may be constructed; one at a time is initialized in a process, and a forked child
    has to make one of its own. Calls may be made from several threads at once.

    Args:
        role: what this participant does.
        cluster_id: its id, uint64, unique among all that link with each other.

    Raises:
        TypeError, ValueError: an argument of the wrong type or width.
    """

    llm_engine_instance: Optional[LLMDataDist] = None
    """The initialized instance of this process, or None."""

    _life = threading.RLock()  # init and finalize exclude each other

    def __init__(self, role: LLMRole, cluster_id: int):
        check_isinstance("role", role, LLMRole, allow_none=False)
        check_uint64("cluster_id", cluster_id)
        self._role = role
        self._cluster_id = cluster_id
        self._is_initialized = False
        self._engine_options = {}
        self._llm_datadist = None
        self._links = None
        self._kv_cache_manager = None

    @staticmethod
    def _role_to_str(role: LLMRole) -> str:
        return _options.ROLE_TEXT[role]

    # ---- Life ------------------------------------------------------------------------------------

    def init(self, options: dict) -> None:
        """Start the engine; nothing happens if the instance is initialized.

        A PROMPT listens when this returns: `listen_address` tells where.

        Args:
            options: str to str, as `LLMConfig.generate_options` gives them. `llm.Role` and
                `llm.ClusterInfo` are written into it. Names that mean nothing here are accepted and
                logged. Names that begin with "datadist." are options of the engine.

        Raises:
            TypeError: `options` is no dict of str to str.
            ValueError, RuntimeError: a listening port that is no number, a host that is no address.
            LLMException: LLM_PARAM_INVALID (an option: the text names it, its value and what is
                allowed), LLM_FAILED (another instance is initialized; the port is taken),
                LLM_FEATURE_NOT_ENABLED (several devices, cache manager mode).
        """
        with LLMDataDist._life:
            if self._is_initialized:
                return
            raise_if_true(
                LLMDataDist.llm_engine_instance is not None,
                "another instance is initialized in this process; finalize it first",
                LLMStatusCode.LLM_FAILED,
            )
            settings = _options.read(self._role, self._cluster_id, options)
            _options.refuse_what_is_not_there(settings)
            self._engine_options = options
            self._llm_datadist = EngineHandle(
                self._cluster_id, self._role, settings.engine, classic_status
            )
            self._links = ClassicLinks(self._llm_datadist, self._role)
            self._kv_cache_manager = KvCacheManager(self._llm_datadist, self._role)
            self._is_initialized = True
            LLMDataDist.llm_engine_instance = self

    def finalize(self) -> None:
        """Stop the engine; nothing happens if the instance is not initialized.

        Running calls end with LLM_ENGINE_FINALIZED, links are closed, caches are freed except where
        a tensor holds their memory. Afterwards `init` may be called again. Blocks until running
        calls have returned.
        """
        with LLMDataDist._life:
            if not self._is_initialized:
                return
            engine = self._llm_datadist
            self._is_initialized = False
            self._kv_cache_manager._shut_down()
            self._kv_cache_manager = None
            self._links = None
            self._llm_datadist = None
            if LLMDataDist.llm_engine_instance is self:
                LLMDataDist.llm_engine_instance = None
            engine.stop()

    def _require_initialized(self, part):
        """Return `part`, which is None outside an initialized life."""
        if part is None:
            raise RuntimeError("llm datadist is not initialized")
        return part

    # ---- Facts -----------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> int:
        """The id that was given to the constructor."""
        return self._cluster_id

    @property
    def listen_address(self) -> str:
        """Where this instance listens, "127.0.0.1:26000"; "" when it does not.

        This is how the port that `:0` chose is read back.
        """
        engine = self._llm_datadist
        return "" if engine is None else engine.call("listen_address", "address")

    @property
    def kv_cache_manager(self) -> KvCacheManager:
        """The manager of caches: the same object until `finalize`.

        Raises RuntimeError when not initialized.
        """
        return self._require_initialized(self._kv_cache_manager)

    @property
    def cache_manager(self):
        """The manager of the newer mode.

        Raises RuntimeError when not initialized, LLMException with LLM_PARAM_INVALID in classic
        mode, which is the only one of this version.
        """
        self._require_initialized(self._llm_datadist)
        raise_if_false(False, "cache_manager needs the cache manager mode, this is classic mode")

    # ---- Links -----------------------------------------------------------------------------------

    def link_clusters(
        self, clusters: Sequence[LLMClusterInfo], timeout: int = 3000
    ) -> Tuple[LLMStatusCode, List[LLMStatusCode]]:
        """Link with clusters, all in parallel. A DECODER links with PROMPTs, which listen.

        Args:
            clusters: list or tuple of 1 to 16 clusters, each with its id, one local and one remote
                address; the local one is the same for all.
            timeout: milliseconds, above 0.

        Returns:
            (status, one status per cluster). Look at both: the first is LLM_SUCCESS also when a
            cluster is LLM_ALREADY_LINK, LLM_REPEAT_REQUEST or LLM_PARAM_INVALID, and
            LLM_LINK_FAILED when one is LLM_LINK_FAILED or LLM_WAIT_PROCESS_TIMEOUT. Clusters that
            were linked stay linked. The list is empty when the call was refused as a whole:
            LLM_PARAM_INVALID (addresses), LLM_CLUSTER_NUM_EXCEED_LIMIT, LLM_PROCESSING_LINK
            (another link or unlink is running). Reasons are logged.

        Blocks until every cluster is decided, at most `timeout`.

        Raises:
            RuntimeError: not initialized.
            TypeError, ValueError: an argument of the wrong type or width, a cluster without an id.
            LLMException: LLM_PARAM_INVALID, a timeout that is not above 0.
        """
        links = self._require_initialized(self._links)
        _check_link_arguments(clusters, timeout)
        return links.link(clusters, timeout)

    def unlink_clusters(
        self, clusters: Sequence[LLMClusterInfo], timeout: int = 3000, force: bool = False
    ) -> Tuple[LLMStatusCode, List[LLMStatusCode]]:
        """Unlink from clusters: tell the peers, and close both ends.

        Args:
            clusters: as in `link_clusters`, with the addresses of the link.
            timeout: milliseconds, above 0.
            force: drop this end only, at once and without a word on the network.

        Returns:
            (status, one status per cluster). The first is LLM_UNLINK_FAILED unless all of the
            others are LLM_SUCCESS or LLM_NOT_YET_LINK (was not linked). Others are LLM_LINK_BUSY (a
            pull is running; not with `force`), LLM_PARAM_INVALID (other addresses than those of the
            link), LLM_NOTIFY_PROMPT_UNLINK_FAILED (this end is gone, the peer did not answer).

        Blocks at most `timeout`.

        Raises:
            As `link_clusters`.
        """
        links = self._require_initialized(self._links)
        _check_link_arguments(clusters, timeout)
        check_isinstance("force", force, bool)
        return links.unlink(clusters, timeout, bool(force))

    def check_link_status(self, remote_cluster_id: int) -> None:
        """Make a round trip to a linked cluster. DECODER only.

        Blocks at most `sync_kv_timeout`.

        Raises:
            RuntimeError: not initialized.
            TypeError, ValueError: an argument of the wrong type or width.
            LLMException: LLM_PARAM_INVALID (role), LLM_NOT_YET_LINK, LLM_LINK_BUSY (a pull is
                running on the link), LLM_WAIT_PROCESS_TIMEOUT.
        """
        self._require_initialized(self._links).check(remote_cluster_id)


def _check_link_arguments(clusters, timeout) -> None:
    check_int32("timeout", timeout)
    raise_if_false(timeout > 0, f"timeout is {timeout}, wanted a number of ms above 0")
    check_isinstance("clusters", clusters, (list, tuple), allow_none=False)
    check_inner("clusters", clusters, LLMClusterInfo)


def _shutdown_handler() -> None:
    """Finalize the live instance, if any. Runs at exit; may be called any number of times."""
    instance = LLMDataDist.llm_engine_instance
    if instance is not None:
        try:
            instance.finalize()
        except LLMException as error:
            log.warn("finalize at exit failed: %s", error)


def _forget_parent_instance() -> None:
    """In a forked child: the parent's instance is not ours, and its lock may be held for ever."""
    LLMDataDist._life = threading.RLock()
    instance = LLMDataDist.llm_engine_instance
    if instance is not None:
        instance.finalize()


atexit.register(_shutdown_handler)
os.register_at_fork(after_in_child=_forget_parent_instance)
