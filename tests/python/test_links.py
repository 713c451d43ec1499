"""Links between processes: what works, what is refused, and what a link's end means for pulls."""

import socket

import pytest
from test_rig import (
    DECODER_ID,
    PROMPT_ID,
    UINT64_MAX,
    Peer,
    cluster,
    content,
    desc,
    options,
    read,
    refused,
    wait_until,
)

from llm_datadist import CacheKey, LLMDataDist, LLMException, LLMRole, LLMStatusCode

SUCCESS = LLMStatusCode.LLM_SUCCESS
NOT_LINKED = "LLM_NOT_YET_LINK"
KEY = (UINT64_MAX, 0, 1)  # a prefix key: it stays


def codes(*names):
    return [LLMStatusCode["LLM_" + name] for name in names]


@pytest.fixture
def prompt():
    with Peer() as peer:
        yield peer


@pytest.fixture
def decoder():
    dist = LLMDataDist(LLMRole.DECODER, DECODER_ID)
    dist.init(options(listen=None))
    yield dist
    dist.finalize()


@pytest.fixture
def nowhere():
    """The address of a port at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def silent():
    """The address of a listener that never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def wait_for_links(peer, count):
    """Wait until the peer counts so many: it finishes a link or unlink a moment after the call."""
    wait_until(lambda: peer.ask("stats")["links"] == count)


def pulls(decoder, peer, cluster_id):
    """Publish a cache at the peer and pull it."""
    peer.ask("allocate", "a", 2, [1, 8], [KEY], seed=cluster_id)
    pull(decoder, cluster_id)


def pull(decoder, cluster_id):
    manager = decoder.kv_cache_manager
    cache = manager.allocate_cache(desc(2, [1, 8]))
    manager.pull_cache(CacheKey(cluster_id, *KEY), cache)
    assert read(manager, cache) == [content(cluster_id, index, 8) for index in range(2)]


def test_link_pull_check_unlink(decoder, prompt):
    info = cluster(PROMPT_ID, prompt.address)
    with refused(LLMException, None, NOT_LINKED):
        decoder.check_link_status(PROMPT_ID)
    assert decoder.link_clusters((info,), 3000) == (SUCCESS, [SUCCESS])
    decoder.check_link_status(PROMPT_ID)
    pulls(decoder, prompt, PROMPT_ID)
    assert decoder.unlink_clusters([info]) == (SUCCESS, [SUCCESS])
    with refused(LLMException, None, NOT_LINKED):
        decoder.check_link_status(PROMPT_ID)
    with refused(LLMException, f"cluster {PROMPT_ID}", NOT_LINKED):
        pull(decoder, PROMPT_ID)
    wait_for_links(prompt, 0)
    assert decoder.unlink_clusters([info]) == (SUCCESS, codes("NOT_YET_LINK"))


def test_a_second_link_says_so_and_the_first_still_pulls(decoder, prompt):
    info = cluster(PROMPT_ID, prompt.address)
    decoder.link_clusters([info])
    assert decoder.link_clusters([info]) == (SUCCESS, codes("ALREADY_LINK"))
    pulls(decoder, prompt, PROMPT_ID)
    assert prompt.ask("stats")["links"] == 1
    decoder.unlink_clusters([info])
    with refused(LLMException, None, NOT_LINKED):
        pull(decoder, PROMPT_ID)


def test_good_links_of_a_partly_failed_call_stand(decoder, prompt, nowhere, capsys):
    with Peer(cluster_id=3) as third:
        infos = [
            cluster(PROMPT_ID, prompt.address),
            cluster(2, nowhere),
            cluster(3, third.address),
        ]
        status, each = decoder.link_clusters(infos, 500)
        assert status == LLMStatusCode.LLM_LINK_FAILED
        assert each == codes("SUCCESS", "LINK_FAILED", "SUCCESS")
        assert nowhere in capsys.readouterr().out
        pulls(decoder, prompt, PROMPT_ID)
        pulls(decoder, third, 3)
        status, each = decoder.link_clusters(infos, 500)
        assert each == codes("ALREADY_LINK", "LINK_FAILED", "ALREADY_LINK")
        status, each = decoder.unlink_clusters(infos)
        assert (status, each) == (SUCCESS, codes("SUCCESS", "NOT_YET_LINK", "SUCCESS"))


def test_no_answer_is_a_time_out(decoder, silent):
    status, each = decoder.link_clusters([cluster(7, silent)], 200)
    assert (status, each) == (codes("LINK_FAILED")[0], codes("WAIT_PROCESS_TIMEOUT"))


def test_the_same_cluster_twice_in_a_call(decoder, prompt):
    infos = [cluster(PROMPT_ID, prompt.address)] * 2
    assert decoder.link_clusters(infos) == (SUCCESS, codes("SUCCESS", "REPEAT_REQUEST"))
    pulls(decoder, prompt, PROMPT_ID)


def test_another_cluster_than_named_is_refused_and_undisturbed(decoder, capsys):
    with Peer(cluster_id=9) as nine:
        assert decoder.link_clusters([cluster(9, nine.address)])[0] == SUCCESS
        status, each = decoder.link_clusters([cluster(7, nine.address)])
        assert (status, each) == (codes("LINK_FAILED")[0], codes("LINK_FAILED"))
        line = capsys.readouterr().out
        assert "expected cluster 7" in line and "found cluster 9" in line
        pulls(decoder, nine, 9)
        with refused(LLMException, None, NOT_LINKED):
            decoder.check_link_status(7)


def test_a_prompt_does_not_link(prompt):
    with Peer(cluster_id=3) as other:
        _, each = prompt.ask("link", 3, other.address)
        assert each == codes("PARAM_INVALID")
        assert prompt.ask("stats")["links"] == 0


@pytest.mark.parametrize("cluster_id", [0, 2**63, 2**64 - 1])
def test_ids_over_their_whole_range(decoder, cluster_id):
    with Peer(cluster_id=cluster_id) as peer:
        assert decoder.link_clusters([cluster(cluster_id, peer.address)]) == (SUCCESS, [SUCCESS])
        pulls(decoder, peer, cluster_id)
        decoder.check_link_status(cluster_id)


def test_both_sides_may_have_the_same_id(decoder):
    with Peer(cluster_id=DECODER_ID) as peer:
        assert decoder.link_clusters([cluster(DECODER_ID, peer.address)]) == (SUCCESS, [SUCCESS])
        pulls(decoder, peer, DECODER_ID)


def test_a_source_address_that_is_not_ours_is_only_a_wish(decoder, prompt):
    info = cluster(PROMPT_ID, prompt.address, local="192.0.2.1")
    assert decoder.link_clusters([info]) == (SUCCESS, [SUCCESS])
    pulls(decoder, prompt, PROMPT_ID)


def test_ipv6(decoder):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this host")
    with Peer(listen="[::1]:0") as peer:
        info = cluster(PROMPT_ID, peer.address, local="::1")
        assert decoder.link_clusters([info]) == (SUCCESS, [SUCCESS])
        pulls(decoder, peer, PROMPT_ID)


def test_unlink_with_other_addresses(decoder, prompt):
    info = cluster(PROMPT_ID, prompt.address)
    decoder.link_clusters([info])
    other = cluster(PROMPT_ID, prompt.address, local="127.0.0.2")
    for force in (False, True):
        status, each = decoder.unlink_clusters([other], 1000, force)
        assert (status, each) == (codes("UNLINK_FAILED")[0], codes("PARAM_INVALID"))
    pulls(decoder, prompt, PROMPT_ID)
    assert decoder.unlink_clusters([info]) == (SUCCESS, [SUCCESS])


def test_a_forced_unlink_and_a_new_link(decoder, prompt):
    info = cluster(PROMPT_ID, prompt.address)
    prompt.ask("allocate", "a", 2, [1, 8], [KEY], seed=PROMPT_ID)
    for _ in range(20):
        assert decoder.link_clusters([info]) == (SUCCESS, [SUCCESS])
        pull(decoder, PROMPT_ID)
        assert decoder.unlink_clusters([info], 1000, True) == (SUCCESS, [SUCCESS])
        with refused(LLMException, None, NOT_LINKED):
            pull(decoder, PROMPT_ID)


def test_the_prompt_may_unlink(decoder, prompt):
    decoder.link_clusters([cluster(PROMPT_ID, prompt.address)])
    wait_for_links(prompt, 1)
    assert prompt.ask("unlink", DECODER_ID, "127.0.0.1:1") == (SUCCESS, [SUCCESS])
    with refused(LLMException, None, NOT_LINKED):
        pull(decoder, PROMPT_ID)
    assert decoder.link_clusters([cluster(PROMPT_ID, prompt.address)]) == (SUCCESS, [SUCCESS])


def test_finalize_of_the_prompt_ends_the_link(decoder, prompt):
    decoder.link_clusters([cluster(PROMPT_ID, prompt.address)])
    pulls(decoder, prompt, PROMPT_ID)
    prompt.ask("finalize")

    def is_unlinked():
        try:
            decoder.check_link_status(PROMPT_ID)
        except LLMException as error:
            return error.status_code.name == NOT_LINKED
        return False

    wait_until(is_unlinked)
    with refused(LLMException, None, NOT_LINKED):
        pull(decoder, PROMPT_ID)


def test_a_new_life_of_the_decoder_links_again(decoder, prompt):
    info = cluster(PROMPT_ID, prompt.address)
    found = options(listen=None)
    decoder.link_clusters([info])
    pulls(decoder, prompt, PROMPT_ID)
    for _ in range(3):
        decoder.finalize()
        decoder.init(found)
        with refused(LLMException, None, NOT_LINKED):
            pull(decoder, PROMPT_ID)
        assert decoder.link_clusters([info]) == (SUCCESS, [SUCCESS])
        pull(decoder, PROMPT_ID)


def test_sixteen_links_in_one_call(decoder, nowhere):
    peers = [Peer(cluster_id=at) for at in range(100, 104)]
    try:
        infos = [cluster(peer.cluster_id, peer.address) for peer in peers]
        infos += [cluster(at, nowhere) for at in range(200, 212)]
        status, each = decoder.link_clusters(infos, 500)
        assert status == LLMStatusCode.LLM_LINK_FAILED
        assert each == [SUCCESS] * 4 + codes("LINK_FAILED") * 12
        for peer in peers:
            pulls(decoder, peer, peer.cluster_id)
    finally:
        for peer in peers:
            peer.kill()
