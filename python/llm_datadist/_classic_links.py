"""Links in classic mode: which calls are refused, and which statuses they come to.

The engine answers with one status per cluster; the classic rules on top of that are all here.
"""

from __future__ import annotations

import threading
from typing import List, Optional, Sequence, Tuple

from llm_datadist._address import endpoint_text, ip_text
from llm_datadist._engine import EngineHandle
from llm_datadist.configs import LLMClusterInfo, LLMRole
from llm_datadist.status import LLMException, LLMStatusCode, raise_if_false
from llm_datadist.utils import log
from llm_datadist.utils.utils import check_uint64

Answer = Tuple[LLMStatusCode, List[LLMStatusCode]]

_MOST_PER_CALL = 16
_MOST_LINKS = 512

# Results of one cluster with which the call as a whole still succeeds.
_LINK_SUCCEEDS = {
    LLMStatusCode.LLM_SUCCESS,
    LLMStatusCode.LLM_ALREADY_LINK,
    LLMStatusCode.LLM_REPEAT_REQUEST,
    LLMStatusCode.LLM_PARAM_INVALID,
    LLMStatusCode.LLM_PROCESSING_LINK,
}
_UNLINK_SUCCEEDS = {LLMStatusCode.LLM_SUCCESS, LLMStatusCode.LLM_NOT_YET_LINK}

# Results of an unlink after which the link still stands.
_STILL_LINKED = {
    LLMStatusCode.LLM_PARAM_INVALID,
    LLMStatusCode.LLM_LINK_BUSY,
    LLMStatusCode.LLM_REPEAT_REQUEST,
    LLMStatusCode.LLM_PROCESSING_LINK,
}


class ClassicLinks:
    """The links of one instance in classic mode, which has one device."""

    def __init__(self, engine: EngineHandle, role: LLMRole):
        self._engine = engine
        self._role = role
        self._running_call = threading.Lock()  # of a link or unlink: a second one is refused
        self._linked_ips = {}  # remote cluster id -> addresses that it was linked with

    def link(self, clusters: Sequence[LLMClusterInfo], timeout_ms: int) -> Answer:
        """Do what LLMDataDist.link_clusters promises; it has checked the types."""
        refusal = _refuse(clusters)
        if refusal is not None:
            return refusal, []
        if not self._running_call.acquire(blocking=False):
            return LLMStatusCode.LLM_PROCESSING_LINK, []
        try:
            results = self._refuse_each(clusters)
            if results is None:
                targets = [_target(cluster) for cluster in clusters]
                overall, results = self._ask("link_clusters", "link_open", targets, timeout_ms)
                if not results:
                    return overall, []
            for cluster, result in zip(clusters, results):
                if result == LLMStatusCode.LLM_SUCCESS:
                    self._linked_ips[cluster.remote_cluster_id] = _ips(cluster)
        finally:
            self._running_call.release()
        is_good = _LINK_SUCCEEDS.issuperset(results)
        return LLMStatusCode.LLM_SUCCESS if is_good else LLMStatusCode.LLM_LINK_FAILED, results

    def _refuse_each(self, clusters) -> Optional[List[LLMStatusCode]]:
        """Return the results when no cluster can be linked at all, else None."""
        if self._role is not LLMRole.DECODER:
            reason = f"it is for {LLMRole.DECODER}, this instance is {self._role}"
        elif self._engine.call("link_clusters", "stats")["links"] >= _MOST_LINKS:
            reason = f"{_MOST_LINKS} links exist, which is the most"
        else:
            return None
        log.error("link_clusters refused: %s", reason)
        return [LLMStatusCode.LLM_PARAM_INVALID] * len(clusters)

    def unlink(self, clusters: Sequence[LLMClusterInfo], timeout_ms: int, force: bool) -> Answer:
        """Do what LLMDataDist.unlink_clusters promises; it has checked the types."""
        refusal = _refuse(clusters)
        if refusal is not None:
            return refusal, []
        if not self._running_call.acquire(blocking=False):
            return LLMStatusCode.LLM_PROCESSING_LINK, []
        try:
            results = [self._refuse_unlink(cluster, force) for cluster in clusters]
            asked = [at for at, result in enumerate(results) if result is None]
            if asked:
                targets = [(clusters[at].remote_cluster_id, None) for at in asked]
                overall, answers = self._ask(
                    "unlink_clusters", "link_close", targets, timeout_ms, force
                )
                if not answers:
                    return overall, []
                for at, answer in zip(asked, answers):
                    results[at] = answer
            for cluster, result in zip(clusters, results):
                if result not in _STILL_LINKED:
                    self._linked_ips.pop(cluster.remote_cluster_id, None)
        finally:
            self._running_call.release()
        is_good = _UNLINK_SUCCEEDS.issuperset(results)
        return LLMStatusCode.LLM_SUCCESS if is_good else LLMStatusCode.LLM_UNLINK_FAILED, results

    def _refuse_unlink(self, cluster: LLMClusterInfo, force: bool) -> Optional[LLMStatusCode]:
        cluster_id = cluster.remote_cluster_id
        linked_ips = self._linked_ips.get(cluster_id)
        if linked_ips is not None and linked_ips != _ips(cluster):
            log.error(
                "unlink_clusters: cluster %s was linked with addresses %s, not %s",
                cluster_id,
                linked_ips,
                _ips(cluster),
            )
            return LLMStatusCode.LLM_PARAM_INVALID
        if not force and cluster_id in self._engine.busy_links:
            return LLMStatusCode.LLM_LINK_BUSY
        return None

    def _ask(self, tag: str, method: str, targets, *args) -> Answer:
        """Call the engine and return its answer in classic codes; log why something failed."""
        status, numbers, text = self._engine.call(tag, method, targets, *args)
        overall = self._engine.to_status(status)
        if overall != LLMStatusCode.LLM_SUCCESS:
            log.error("%s: %s, %s", tag, overall, text)
        return overall, [self._engine.to_status(number) for number in numbers]

    def check(self, cluster_id: int) -> None:
        """Do what LLMDataDist.check_link_status promises."""
        check_uint64("remote_cluster_id", cluster_id)
        raise_if_false(
            self._role is LLMRole.DECODER,
            f"check_link_status is for {LLMRole.DECODER}, this instance is {self._role}",
        )
        if cluster_id in self._engine.busy_links:
            raise LLMException(
                f"check_link_status failed, error code is {LLMStatusCode.LLM_LINK_BUSY}, a pull is "
                f"running on the link with cluster {cluster_id}.",
                status_code=LLMStatusCode.LLM_LINK_BUSY,
            )
        self._engine.call("check_link_status", "link_check", cluster_id)


def _refuse(clusters: Sequence[LLMClusterInfo]) -> Optional[LLMStatusCode]:
    """Return the status when the request as a whole is refused. TypeError without a cluster id."""
    reason = None
    status = LLMStatusCode.LLM_PARAM_INVALID
    if not clusters:
        reason = "no clusters are given"
    elif len(clusters) > _MOST_PER_CALL:
        reason = f"{len(clusters)} clusters are given, at most {_MOST_PER_CALL}"
        status = LLMStatusCode.LLM_CLUSTER_NUM_EXCEED_LIMIT
    for cluster in clusters if reason is None else ():
        local, remote = cluster.local_ip_info_list, cluster.remote_ip_info_list
        if len(local) != 1 or len(remote) != 1:
            reason = (
                f"cluster {cluster.remote_cluster_id} has {len(local)} local and {len(remote)} "
                "remote addresses, wanted one of each"
            )
        elif local != clusters[0].local_ip_info_list:
            reason = "the clusters of one call have different local addresses"
    if reason is not None:
        log.error("link request refused: %s", reason)
        return status
    for cluster in clusters:
        check_uint64("remote_cluster_id", cluster.remote_cluster_id)
    return None


def _target(cluster: LLMClusterInfo) -> Tuple[int, str, Optional[str]]:
    """Return (cluster id, where it listens, source address) for the engine."""
    local_ip = cluster.local_ip_info_list[0][0]
    is_specified = local_ip not in (0, "::")
    return (
        cluster.remote_cluster_id,
        endpoint_text(*cluster.remote_ip_info_list[0]),
        ip_text(local_ip) if is_specified else None,
    )


def _ips(cluster: LLMClusterInfo) -> tuple:
    """Return the addresses of both sides, as text without ports."""
    return tuple(
        ip_text(infos[0][0]) for infos in (cluster.local_ip_info_list, cluster.remote_ip_info_list)
    )
