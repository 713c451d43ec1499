"""A running engine of the C library, with its failures as LLMException."""

from __future__ import annotations

import os
import threading
from typing import Callable, Dict

from llm_datadist._extension import _datadist
from llm_datadist.status import LLMException, LLMStatusCode, handle_llm_status


class EngineHandle:
    """One engine, from start to stop.

    `to_status` turns a status number of the engine into the code that the mode reports. Every call
    is safe after `stop`: it raises LLM_ENGINE_FINALIZED. In a forked child every call does.
    """

    def __init__(
        self,
        cluster_id: int,
        role: int,
        options: Dict[str, str],
        to_status: Callable[[int], LLMStatusCode],
    ):
        """Create an engine, set its options and start it. Raises LLMException."""
        self.to_status = to_status
        self.busy_links = BusyLinks()
        self._pid = os.getpid()
        self._native = None
        try:
            self._native = _datadist.Engine(cluster_id, int(role))
            for name, value in options.items():
                self._native.set(name, value)
            self._native.start()
        except BaseException as error:
            if self._native is not None:
                self._native.stop()
            if isinstance(error, _datadist.Error):
                self._raise("init", error)
            raise

    def call(self, tag: str, method: str, *args, **kwargs):
        """Call a method of the engine; `tag` names the public call in the text of a failure."""
        if not self.is_of_this_process():
            raise LLMException(
                f"{tag} failed, error code is {LLMStatusCode.LLM_ENGINE_FINALIZED}, the instance "
                f"belongs to process {self._pid}; a forked child has to make one of its own.",
                status_code=LLMStatusCode.LLM_ENGINE_FINALIZED,
            )
        try:
            return getattr(self._native, method)(*args, **kwargs)
        except _datadist.Error as error:
            self._raise(tag, error)

    def _raise(self, tag: str, error) -> None:
        try:
            handle_llm_status(self.to_status(error.status), tag, str(error))
        except LLMException as exception:
            raise exception from error

    def is_of_this_process(self) -> bool:
        """Return whether this process, not its parent before a fork, started the engine."""
        return os.getpid() == self._pid

    def stop(self) -> None:
        """Stop the engine: end running calls, links and caches. Idempotent.

        Blocks until running calls have returned. In a forked child it does nothing: the engine's
        threads are in the parent.
        """
        if self.is_of_this_process():
            self._native.stop()


class BusyLinks:
    """Which links a pull of this process is running on; classic mode answers LINK_BUSY there."""

    def __init__(self):
        self._lock = threading.Lock()
        self._pulls = {}

    def enter(self, cluster_id: int) -> None:
        """Note that a pull begins."""
        with self._lock:
            self._pulls[cluster_id] = self._pulls.get(cluster_id, 0) + 1

    def leave(self, cluster_id: int) -> None:
        """Note that a pull has ended."""
        with self._lock:
            self._pulls[cluster_id] -= 1
            if self._pulls[cluster_id] == 0:
                del self._pulls[cluster_id]

    def __contains__(self, cluster_id: int) -> bool:
        return cluster_id in self._pulls
