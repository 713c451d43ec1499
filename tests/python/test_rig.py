"""The rig of these tests: participants in processes of their own, and a few common helpers.

Run as a program it is such a participant: it obeys calls that come over the socket whose descriptor
is its argument, and ends when the socket does. The tests at the end are about the rig itself.
"""

import contextlib
import multiprocessing.connection
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

from llm_datadist import (
    BlocksCacheKey,
    CacheDesc,
    CacheKey,
    DataType,
    LLMClusterInfo,
    LLMDataDist,
    LLMException,
    LLMRole,
    LLMStatusCode,
)

WAIT_S = 30  # longer than anything here takes; what takes longer hangs
PROMPT_ID = 1
DECODER_ID = 2
UINT64_MAX = 2**64 - 1


def options(listen="127.0.0.1:0", **more):
    """Options of one device; `listen` None for none."""
    found = {"ge.exec.deviceId": "0"}
    if listen is not None:
        found["llm.listenIpInfo"] = listen
    return {**found, **more}


def desc(num_tensors, shape, data_type=DataType.DT_UINT8, **more):
    return CacheDesc(num_tensors, shape, data_type, **more)


def cluster(cluster_id, address, local="127.0.0.1"):
    """A cluster to link with; `address` as `listen_address` gives it."""
    host, _, port = address.rpartition(":")
    info = LLMClusterInfo()
    info.remote_cluster_id = cluster_id
    info.append_local_ip_info(local, 0)
    info.append_remote_ip_info(host.strip("[]"), int(port))
    return info


@contextlib.contextmanager
def refused(error, text=None, status="LLM_PARAM_INVALID"):
    """Expect an exception, and of an LLMException this status."""
    import pytest

    with pytest.raises(error, match=text) as caught:
        yield caught
    if error is LLMException:
        assert caught.value.status_code is LLMStatusCode[status], caught.value


def wait_until(condition):
    """Wait until `condition()` holds, polling; fail when it never does."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "condition did not come true"
        time.sleep(0.0005)


class Call(threading.Thread):
    """A call in a thread of its own, whose outcome is asked for later."""

    def __init__(self, function, *args, **kwargs):
        super().__init__(daemon=True)
        self._call = (function, args, kwargs)
        self._outcome = None
        self.start()

    def run(self):
        function, args, kwargs = self._call
        try:
            self._outcome = (function(*args, **kwargs), None)
        except BaseException as error:
            self._outcome = (None, error)

    def result(self):
        self.join(WAIT_S)
        assert self._outcome is not None, "call did not end"
        value, error = self._outcome
        if error is not None:
            raise error
        return value


# ---- contents of caches -------------------------------------------------------------------------


def memories(manager, cache):
    """Each tensor of a cache as a flat writable memoryview."""
    count = cache.cache_desc.num_tensors
    tensors = [manager.get_cache_tensors(cache, index)[0] for index in range(count)]
    return [memoryview(tensor).cast("B") for tensor in tensors]


def fill(manager, cache, seed):
    for index, memory in enumerate(memories(manager, cache)):
        memory[:] = content(seed, index, len(memory))


def read(manager, cache):
    return [bytes(memory) for memory in memories(manager, cache)]


def content(seed, index, size):
    """What `fill` writes into one tensor."""
    return random.Random(f"{seed}/{index}").randbytes(size)


# ---- another process ----------------------------------------------------------------------------


class Participant:
    """What a process of the rig holds, and what it can be asked to do."""

    def __init__(self):
        self.dist = None
        self.caches = {}

    @property
    def manager(self):
        return self.dist.kv_cache_manager

    def init(self, role, cluster_id, found):
        self.dist = LLMDataDist(LLMRole[role], cluster_id)
        self.dist.init(found)
        return self.dist.listen_address

    def allocate(self, name, num_tensors, shape, keys=(), seed=None, data_type="DT_UINT8"):
        """Allocate and fill a cache; `keys` are arguments of CacheKey without the cluster."""
        given = [CacheKey(self.dist.cluster_id, *key) for key in keys]
        found = CacheDesc(num_tensors, shape, DataType[data_type])
        return self._hold(name, self.manager.allocate_cache(found, given), seed)

    def allocate_blocks(self, name, num_tensors, shape, model_id=None, seed=None):
        key = None if model_id is None else BlocksCacheKey(self.dist.cluster_id, model_id)
        cache = self.manager.allocate_blocks_cache(desc(num_tensors, shape), key)
        return self._hold(name, cache, seed)

    def _hold(self, name, cache, seed):
        self.caches[name] = cache
        if seed is not None:
            fill(self.manager, cache, seed)
        return cache.cache_id

    def read(self, name):
        return read(self.manager, self.caches[name])

    def deallocate(self, name):
        self.manager.deallocate_cache(self.caches[name])

    def remove_key(self, *key):
        self.manager.remove_cache_key(CacheKey(self.dist.cluster_id, *key))

    def stats(self):
        return self.dist._llm_datadist.call("stats", "stats")

    def link(self, cluster_id, address, timeout=3000):
        return self.dist.link_clusters([cluster(cluster_id, address)], timeout)

    def unlink(self, cluster_id, address, force=False):
        return self.dist.unlink_clusters([cluster(cluster_id, address)], 3000, force)

    def pull(self, key, name, *args, **kwargs):
        self.manager.pull_cache(CacheKey(*key), self.caches[name], *args, **kwargs)

    def pull_in_background(self, key, name):
        """Begin a pull in a daemon thread that nobody waits for."""
        Call(self.pull, key, name)
        wait_until(lambda: key[0] in self.dist._llm_datadist.busy_links)

    def finalize(self):
        self.dist.finalize()

    def fail(self):
        raise ValueError("as asked")


class RemoteFailure(Exception):
    """A call in another process raised; `status` is the name of an LLMException's status."""

    def __init__(self, kind, status, text):
        super().__init__(f"{kind} {status}: {text}")
        self.kind = kind
        self.status = status


class Peer:
    """A participant in a process of its own. Use with `with`: the process is gone afterwards."""

    def __init__(self, role="PROMPT", cluster_id=PROMPT_ID, **more):
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        self._connection = multiprocessing.connection.Connection(ours.detach())
        self.cluster_id = cluster_id
        try:
            listen = more.pop("listen", "127.0.0.1:0" if role == "PROMPT" else None)
            self.address = self.ask("init", role, cluster_id, options(listen, **more))
        except BaseException:
            self.kill()
            raise

    def ask(self, name, *args, **kwargs):
        """Call a method of the participant and return what it returns."""
        self.post(name, *args, **kwargs)
        return self.answer()

    def post(self, name, *args, **kwargs):
        """Begin a call; `answer` ends it."""
        self._connection.send((name, args, kwargs))

    def answer(self):
        if not self._connection.poll(WAIT_S):
            raise TimeoutError("participant does not answer")
        is_good, value = self._connection.recv()
        if not is_good:
            raise RemoteFailure(*value)
        return value

    def stop(self):
        """Stop the process; every thread of it stands still when this returns."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()  # also a stopped one
        self.process.wait(WAIT_S)
        self._connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._connection.close()
        try:
            self.resume()
            self.process.wait(WAIT_S)
        finally:
            self.kill()


def serve(descriptor):
    connection = multiprocessing.connection.Connection(descriptor)
    participant = Participant()
    while True:
        try:
            name, args, kwargs = connection.recv()
        except EOFError:
            return
        try:
            answer = (True, getattr(participant, name)(*args, **kwargs))
        except Exception as error:
            status = getattr(error, "status_code", None)
            name_of_status = status.name if status is not None else None
            answer = (False, (type(error).__name__, name_of_status, str(error)))
        connection.send(answer)


# ---- tests of the rig ---------------------------------------------------------------------------


def test_a_participant_answers_and_its_failures_come_back():
    import pytest

    with Peer() as peer:
        assert peer.address.startswith("127.0.0.1:")
        assert peer.ask("allocate", "a", 2, [1, 8], seed=1) == 1
        assert peer.ask("read", "a") == [content(1, 0, 8), content(1, 1, 8)]
        with pytest.raises(RemoteFailure, match="as asked"):
            peer.ask("fail")
        with pytest.raises(RemoteFailure) as caught:
            peer.ask("allocate", "b", 0, [1, 8])
        assert caught.value.status == "LLM_PARAM_INVALID"
    assert peer.process.returncode == 0


def test_a_stopped_or_killed_participant_is_reaped():
    with Peer() as stopped:
        stopped.stop()
    assert stopped.process.returncode is not None
    killed = Peer()
    killed.kill()
    assert killed.process.returncode == -signal.SIGKILL


if __name__ == "__main__":
    serve(int(sys.argv[1]))
