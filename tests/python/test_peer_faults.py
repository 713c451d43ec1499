"""What a decoder sees when its prompt is slow, stopped or killed, and that its memory is quiet."""

import time

import pytest
from test_rig import (
    DECODER_ID,
    PROMPT_ID,
    UINT64_MAX,
    Call,
    Peer,
    cluster,
    content,
    desc,
    memories,
    options,
    read,
    refused,
    wait_until,
)

from llm_datadist import CacheKey, LLMDataDist, LLMException, LLMRole, LLMStatusCode

SUCCESS = LLMStatusCode.LLM_SUCCESS
TIMEOUT = "LLM_WAIT_PROCESS_TIMEOUT"
NOT_LINKED = "LLM_NOT_YET_LINK"
KEY = CacheKey(PROMPT_ID, UINT64_MAX, 0, 1)
SYNC_MS = 300
BIG = 64 << 20  # of each of 4 tensors: long enough to be hit in the middle


@pytest.fixture
def prompt():
    with Peer() as peer:
        yield peer


@pytest.fixture
def decoder_of():
    """Start a decoder with this time-out, linked with a prompt."""
    dists = []

    def start(peer, sync_ms):
        dist = LLMDataDist(LLMRole.DECODER, DECODER_ID)
        dist.init(options(listen=None, **{"llm.SyncKvCacheWaitTime": str(sync_ms)}))
        dists.append(dist)
        assert dist.link_clusters([cluster(PROMPT_ID, peer.address)])[0] == SUCCESS
        return dist

    yield start
    for dist in dists:
        dist.finalize()


def publish(peer, size, seed=1):
    peer.ask("allocate", "a", 4, [1, size], [(UINT64_MAX, 0, 1)], seed=seed)


def wait_until_busy(dist, pulling):
    """Wait until a pull is under way; it is not expected to end by itself."""
    busy_links = dist._llm_datadist.busy_links
    wait_until(lambda: PROMPT_ID in busy_links or not pulling.is_alive())
    assert pulling.is_alive(), pulling.result()


def test_a_stopped_prompt_costs_the_time_out(prompt, decoder_of):
    publish(prompt, 8)
    dist = decoder_of(prompt, SYNC_MS)
    manager = dist.kv_cache_manager
    cache = manager.allocate_cache(desc(4, [1, 8]))
    manager.pull_cache(KEY, cache)
    prompt.stop()
    begin = time.monotonic()
    with refused(LLMException, None, TIMEOUT):
        manager.pull_cache(KEY, cache)
    assert SYNC_MS / 1000 <= time.monotonic() - begin < SYNC_MS / 1000 + 2
    begin = time.monotonic()
    with pytest.raises(LLMException) as caught:
        dist.check_link_status(PROMPT_ID)
    assert caught.value.status_code.name in (TIMEOUT, NOT_LINKED)
    assert time.monotonic() - begin < SYNC_MS / 1000 + 2


def test_after_a_time_out_the_link_works_or_says_so(prompt, decoder_of):
    publish(prompt, 8)
    dist = decoder_of(prompt, SYNC_MS)
    manager = dist.kv_cache_manager
    cache = manager.allocate_cache(desc(4, [1, 8]))
    prompt.stop()
    with refused(LLMException, None, TIMEOUT):
        manager.pull_cache(KEY, cache)
    prompt.resume()
    prompt.ask("stats")
    try:
        manager.pull_cache(KEY, cache)
    except LLMException as error:
        assert error.status_code.name == NOT_LINKED
        dist.link_clusters([cluster(PROMPT_ID, prompt.address)])
        manager.pull_cache(KEY, cache)
    assert read(manager, cache) == [content(1, index, 8) for index in range(4)]


def test_a_killed_prompt_ends_a_waiting_pull_at_once(prompt, decoder_of):
    publish(prompt, 8)
    dist = decoder_of(prompt, 60000)
    manager = dist.kv_cache_manager
    cache = manager.allocate_cache(desc(4, [1, 8]))
    prompt.stop()
    pulling = Call(manager.pull_cache, KEY, cache)
    wait_until_busy(dist, pulling)
    with refused(LLMException, None, "LLM_LINK_BUSY"):
        dist.check_link_status(PROMPT_ID)
    prompt.kill()
    begin = time.monotonic()
    with refused(LLMException, "peer lost|not linked", NOT_LINKED):
        pulling.result()
    assert time.monotonic() - begin < 5
    with refused(LLMException, None, NOT_LINKED):
        manager.pull_cache(KEY, cache)
    with refused(LLMException, None, NOT_LINKED):
        dist.check_link_status(PROMPT_ID)


def test_a_prompt_killed_in_the_middle_of_a_pull(decoder_of):
    for _ in range(5):
        with Peer() as prompt:
            publish(prompt, BIG)
            dist = decoder_of(prompt, 60000)
            manager = dist.kv_cache_manager
            cache = manager.allocate_cache(desc(4, [1, BIG]))
            found = memories(manager, cache)
            pulling = Call(manager.pull_cache, KEY, cache)
            first = found[0]
            while first[0] == 0 and first[1] == 0 and pulling.is_alive():
                pass  # nothing has come yet
            prompt.kill()
            try:
                pulling.result()
            except LLMException as error:
                assert error.status_code.name == NOT_LINKED
                assert "peer lost" in str(error)
                assert_quiet(found)
                assert manager.allocate_cache(desc(1, [1])).cache_id == 2
                return
            finally:
                dist.finalize()
    pytest.fail("the pull was always faster than the signal")


def assert_quiet(found):
    """Nothing is written any more: marks stay."""
    for memory in found:
        memory[:] = bytes(len(memory))
    begin = time.monotonic()
    while time.monotonic() - begin < 0.2:
        for memory in found:
            assert not any(memory[-4096:]) and not any(memory[:4096])


def test_quiet_after_a_time_out_in_the_middle(prompt, decoder_of):
    publish(prompt, BIG)
    dist = decoder_of(prompt, SYNC_MS)
    manager = dist.kv_cache_manager
    cache = manager.allocate_cache(desc(4, [1, BIG]))
    found = memories(manager, cache)
    pulling = Call(manager.pull_cache, KEY, cache)
    while found[0][0] == 0 and found[0][1] == 0 and pulling.is_alive():
        pass
    prompt.stop()
    try:
        pulling.result()
    except LLMException as error:
        assert error.status_code.name == TIMEOUT
        for memory in found:
            memory[:] = bytes(len(memory))
        prompt.resume()
        prompt.ask("stats")
        assert_quiet(found)
    else:
        pytest.skip("the pull was faster than the signal")


def test_a_killed_and_restarted_prompt_is_linked_again(decoder_of):
    with Peer() as first:
        publish(first, 8, seed=1)
        address = first.address
        dist = decoder_of(first, 5000)
        manager = dist.kv_cache_manager
        cache = manager.allocate_cache(desc(4, [1, 8]))
        manager.pull_cache(KEY, cache)
        first.kill()
    with Peer(listen=address) as second:
        publish(second, 8, seed=2)
        wait_until(lambda: dist._llm_datadist.call("stats", "stats")["links"] == 0)
        assert dist.link_clusters([cluster(PROMPT_ID, address)]) == (SUCCESS, [SUCCESS])
        manager.pull_cache(KEY, cache)
        assert read(manager, cache) == [content(2, index, 8) for index in range(4)]


def test_finalize_during_a_pull_ends_it(prompt, decoder_of):
    publish(prompt, 8)
    dist = decoder_of(prompt, 60000)
    manager = dist.kv_cache_manager
    cache = manager.allocate_cache(desc(4, [1, 8]))
    prompt.stop()
    pulling = Call(manager.pull_cache, KEY, cache)
    wait_until_busy(dist, pulling)
    begin = time.monotonic()
    dist.finalize()
    assert time.monotonic() - begin < 5
    with refused(LLMException, None, "LLM_ENGINE_FINALIZED"):
        pulling.result()


def test_forced_unlink_cuts_a_pull_and_an_orderly_one_is_refused(prompt, decoder_of):
    publish(prompt, 8)
    dist = decoder_of(prompt, 60000)
    manager = dist.kv_cache_manager
    info = cluster(PROMPT_ID, prompt.address)
    cache = manager.allocate_cache(desc(4, [1, 8]))
    prompt.stop()
    pulling = Call(manager.pull_cache, KEY, cache)
    wait_until_busy(dist, pulling)
    status, each = dist.unlink_clusters([info])
    assert status == LLMStatusCode.LLM_UNLINK_FAILED
    assert each == [LLMStatusCode.LLM_LINK_BUSY]
    assert dist.unlink_clusters([info], 3000, True) == (SUCCESS, [SUCCESS])
    with refused(LLMException, None, NOT_LINKED):
        pulling.result()


def test_unlink_of_a_stopped_prompt(prompt, decoder_of):
    dist = decoder_of(prompt, SYNC_MS)
    prompt.stop()
    begin = time.monotonic()
    status, each = dist.unlink_clusters([cluster(PROMPT_ID, prompt.address)], 300)
    assert status == LLMStatusCode.LLM_UNLINK_FAILED
    assert each == [LLMStatusCode.LLM_NOTIFY_PROMPT_UNLINK_FAILED]
    assert time.monotonic() - begin < 5
    with refused(LLMException, None, NOT_LINKED):
        dist.check_link_status(PROMPT_ID)


def test_a_prompt_forgets_a_killed_decoder(prompt):
    prompt.ask("allocate", "a", 4, [1, 8], [(1,)], seed=1)
    with Peer("DECODER", DECODER_ID) as decoder:
        assert decoder.ask("link", PROMPT_ID, prompt.address) == (SUCCESS, [SUCCESS])
        wait_until(lambda: prompt.ask("stats")["links"] == 1)
        decoder.ask("allocate", "b", 4, [1, 8])
        decoder.kill()
    wait_until(lambda: prompt.ask("stats")["links"] == 0)
    with Peer("DECODER", DECODER_ID) as decoder:
        assert decoder.ask("link", PROMPT_ID, prompt.address) == (SUCCESS, [SUCCESS])
        decoder.ask("allocate", "b", 4, [1, 8])
        decoder.ask("pull", (PROMPT_ID, 1), "b")
        assert decoder.ask("read", "b") == prompt.ask("read", "a")


def test_a_process_ends_though_a_daemon_thread_is_pulling(prompt):
    prompt.ask("allocate", "a", 4, [1, 8], [(1,)])
    with Peer("DECODER", DECODER_ID, **{"llm.SyncKvCacheWaitTime": "60000"}) as decoder:
        assert decoder.ask("link", PROMPT_ID, prompt.address) == (SUCCESS, [SUCCESS])
        decoder.ask("allocate", "b", 4, [1, 8])
        prompt.stop()
        decoder.ask("pull_in_background", (PROMPT_ID, 1), "b")
        begin = time.monotonic()
    assert decoder.process.returncode == 0
    assert time.monotonic() - begin < 5
