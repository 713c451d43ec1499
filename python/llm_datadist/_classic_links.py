"""Links in classic mode: which calls are refused, and which statuses they come to.

The engine answers with one status per cluster; the classic rules on top of it are all here.
"""

from __future__ import annotations

import threading
from typing import Dict, List, Optional, Tuple

from llm_datadist._address import endpoint_text, ip_text
from llm_datadist._engine import EngineHandle
from llm_datadist.configs import LLMClusterInfo, LLMRole
from llm_datadist.status import LLMException, LLMStatusCode, raise_if_false
from llm_datadist.utils import log
from llm_datadist.utils.utils import check_uint64

Answer = Tuple[LLMStatusCode, List[LLMStatusCode]]

_MOST_PER_CALL = 16
_MOST_LINKS = 512

# Results of a cluster that leave the call as a whole successful.
_LINK_GOES_ON = {
    LLMStatusCode.LLM_SUCCESS,
    LLMStatusCode.LLM_ALREADY_LINK,
    LLMStatusCode.LLM_REPEAT_REQUEST,
    LLMStatusCode.LLM_PARAM_INVALID,
    LLMStatusCode.LLM_PROCESSING_LINK,
}
_UNLINK_GOES_ON = {LLMStatusCode.LLM_SUCCESS, LLMStatusCode.LLM_NOT_YET_LINK}

# Results of an unlink after which the link still stands.
_LINK_STAYS = {
    LLMStatusCode.LLM_PARAM_INVALID,
    LLMStatusCode.LLM_LINK_BUSY,
    LLMStatusCode.LLM_REPEAT_REQUEST,
    LLMStatusCode.LLM_PROCESSING_LINK,
}

_UNSPECIFIED_IPV4 = 0


class ClassicLinks:
    """The links of one instance in classic mode, which has one device."""

    def __init__(self, engine: EngineHandle, role: LLMRole):
        self._engine = engine
        self._role = role
        self._running_call = threading.Lock()  # one link or unlink at a time; others are refused
        self._linked_ips = {}  # remote cluster id -> (local ips, remote ips) of its link

    def link(self, clusters, timeout_ms: int) -> Answer:
        """Link with clusters; arguments as LLMDataDist.link_clusters, types checked there."""
        refusal = _refuse(clusters)
        if refusal is not None:
            return refusal, []
        if self._role is not LLMRole.DECODER:
            log.error("link_clusters is for %s, this instance is %s", LLMRole.DECODER, self._role)
            return _overall(clusters, {}, LLMStatusCode.LLM_PARAM_INVALID, _LINK_GOES_ON)
        return self._alone(self._link, clusters, timeout_ms)

    def _link(self, clusters, timeout_ms: int) -> Answer:
        count = self._engine.call("link_clusters", "stats")["links"]
        if count >= _MOST_LINKS:
            log.error("link_clusters: %s links exist, at most %s", count, _MOST_LINKS)
            return _overall(clusters, {}, LLMStatusCode.LLM_PARAM_INVALID, _LINK_GOES_ON)
        targets = [
            (cluster.remote_cluster_id, _remote_text(cluster), _local_text(cluster))
            for cluster in clusters
        ]
        results = self._ask("link_clusters", "link_open", targets, timeout_ms)
        for cluster, result in zip(clusters, results):
            if result == LLMStatusCode.LLM_SUCCESS:
                self._linked_ips[cluster.remote_cluster_id] = _ips(cluster)
        return _overall(
            clusters, dict(enumerate(results)), LLMStatusCode.LLM_LINK_FAILED, _LINK_GOES_ON
        )

    def unlink(self, clusters, timeout_ms: int, force: bool) -> Answer:
        """Unlink from clusters; arguments as LLMDataDist.unlink_clusters, types checked there."""
        refusal = _refuse(clusters)
        if refusal is not None:
            return refusal, []
        return self._alone(self._unlink, clusters, timeout_ms, force)
