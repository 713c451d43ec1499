"""Statuses of link and unlink in classic mode, for what an engine may answer."""

import pytest
from test_rig import Call, cluster, refused, wait_until

from llm_datadist import LLMClusterInfo, LLMException, LLMRole, LLMStatusCode
from llm_datadist._classic_links import ClassicLinks
from llm_datadist._engine import BusyLinks
from llm_datadist.status import classic_status

OK = 0
TIMEOUT = 0x5010B01A
NOT_LINKED = 0x5010B007
ALREADY_LINKED = 0x5010B008
LINK_FAILED = 0x5010B009
REPEATED = 0x5010B003
PEER_NOT_TOLD = 0x5010B00B
IN_PROGRESS = 0x5010B00D
FINALIZED = 0x5010B006
NO_MEMORY = 0x5010B01C
INVALID = 0x5010B005


class Engine:
    """Stands for an engine: notes calls, gives the answers it was told to."""

    to_status = staticmethod(classic_status)

    def __init__(self, *numbers, text="why"):
        self.numbers = list(numbers)
        self.overall = next((number for number in reversed(numbers) if number), OK)
        self.text = text
        self.links = 0
        self.busy_links = BusyLinks()
        self.calls = []
        self.hold = None

    def call(self, tag, method, *args):
        if method == "stats":
            return {"links": self.links}
        self.calls.append((method, *args))
        if self.hold is not None:
            self.hold.wait(30)
        return self.overall, self.numbers, self.text


def codes(*names):
    return [LLMStatusCode["LLM_" + name] for name in names]


def clusters(count, **changes):
    return [cluster(at + 1, f"10.0.0.{at + 1}:26000", **changes) for at in range(count)]


def links_of(engine, role=LLMRole.DECODER):
    return ClassicLinks(engine, role)


@pytest.mark.parametrize(
    ("answers", "overall", "each"),
    [
        ([OK, OK], "SUCCESS", ["SUCCESS", "SUCCESS"]),
        ([ALREADY_LINKED], "SUCCESS", ["ALREADY_LINK"]),
        ([OK, REPEATED], "SUCCESS", ["SUCCESS", "REPEAT_REQUEST"]),
        ([OK, INVALID], "SUCCESS", ["SUCCESS", "PARAM_INVALID"]),
        ([IN_PROGRESS], "SUCCESS", ["PROCESSING_LINK"]),
        ([OK, LINK_FAILED, OK], "LINK_FAILED", ["SUCCESS", "LINK_FAILED", "SUCCESS"]),
        ([LINK_FAILED, ALREADY_LINKED], "LINK_FAILED", ["LINK_FAILED", "ALREADY_LINK"]),
        ([TIMEOUT], "LINK_FAILED", ["WAIT_PROCESS_TIMEOUT"]),
        ([PEER_NOT_TOLD], "LINK_FAILED", ["NOTIFY_PROMPT_UNLINK_FAILED"]),
        ([0x5010B0FF], "LINK_FAILED", ["FAILED"]),
    ],
)
def test_link_statuses(answers, overall, each):
    engine = Engine(*answers)
    found = links_of(engine).link(clusters(len(answers)), 500)
    assert found == (codes(overall)[0], codes(*each))
    targets = [(at + 1, f"10.0.0.{at + 1}:26000", "127.0.0.1") for at in range(len(answers))]
    assert engine.calls == [("link_open", targets, 500)]


@pytest.mark.parametrize(
    ("number", "overall"), [(FINALIZED, "ENGINE_FINALIZED"), (NO_MEMORY, "DEVICE_OUT_OF_MEMORY")]
)
def test_a_refusal_of_the_engine_as_a_whole(number, overall):
    engine = Engine()
    engine.overall = number
    assert links_of(engine).link(clusters(1), 500) == (codes(overall)[0], [])
    assert links_of(engine).unlink(clusters(1), 500, False) == (codes(overall)[0], [])


def with_lists(local, remote, cluster_id=1):
    info = LLMClusterInfo()
    if cluster_id is not None:
        info.remote_cluster_id = cluster_id
    for at in range(local):
        info.append_local_ip_info(f"10.1.0.{at}", 0)
    for at in range(remote):
        info.append_remote_ip_info(f"10.0.0.{at}", 26000)
    return info


BAD_REQUESTS = [
    ([], "PARAM_INVALID"),
    (clusters(17), "CLUSTER_NUM_EXCEED_LIMIT"),
    ([with_lists(0, 1)], "PARAM_INVALID"),
    ([with_lists(1, 0)], "PARAM_INVALID"),
    ([with_lists(0, 0)], "PARAM_INVALID"),
    ([with_lists(2, 2)], "PARAM_INVALID"),
    ([with_lists(1, 2)], "PARAM_INVALID"),
    (clusters(1) + clusters(1, local="127.0.0.2"), "PARAM_INVALID"),
]


@pytest.mark.parametrize(("request_", "status"), BAD_REQUESTS)
def test_a_bad_request_is_refused_as_a_whole(request_, status):
    engine = Engine()
    links = links_of(engine)
    assert links.link(request_, 500) == (codes(status)[0], [])
    assert links.unlink(request_, 500, False) == (codes(status)[0], [])
    assert links.unlink(request_, 500, True) == (codes(status)[0], [])
    assert engine.calls == []


def test_sixteen_clusters_are_not_too_many():
    status, each = links_of(Engine(*[OK] * 16)).link(clusters(16), 500)
    assert status == LLMStatusCode.LLM_SUCCESS and len(each) == 16


def test_a_cluster_without_an_id_is_a_type_error():
    for call in (links_of(Engine()).link, lambda *a: links_of(Engine()).unlink(*a, False)):
        with pytest.raises(TypeError, match="remote_cluster_id only support"):
            call([with_lists(1, 1, cluster_id=None)], 500)


@pytest.mark.parametrize("role", [LLMRole.PROMPT, LLMRole.MIX])
def test_only_a_decoder_links(role):
    engine = Engine()
    status, each = links_of(engine, role).link(clusters(2), 500)
    assert each == codes("PARAM_INVALID", "PARAM_INVALID")
    assert engine.calls == []


def test_the_most_links():
    engine = Engine(OK)
    engine.links = 511
    assert links_of(engine).link(clusters(1), 500)[1] == codes("SUCCESS")
    engine.links = 512
    assert links_of(engine).link(clusters(2), 500)[1] == codes("PARAM_INVALID", "PARAM_INVALID")


@pytest.mark.parametrize(
    ("local", "source"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", None),
        ("::", None),
        ("::1", "::1"),
        ("fe80::1%lo", "fe80::1%lo"),
    ],
)
def test_source_address(local, source):
    engine = Engine(OK)
    links_of(engine).link([cluster(5, "[::1]:9", local=local)], 500)
    assert engine.calls[0][1] == [(5, "[::1]:9", source)]


def test_reasons_are_logged(capsys):
    links_of(Engine(OK, LINK_FAILED, text="cannot reach 10.0.0.2:26000")).link(clusters(2), 500)
    assert "cannot reach 10.0.0.2:26000" in capsys.readouterr().out
    links_of(Engine()).link([with_lists(1, 2)], 500)
    assert "1 local and 2 remote addresses" in capsys.readouterr().out


# ---- unlink ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "overall", "each"),
    [
        ([OK], "SUCCESS", ["SUCCESS"]),
        ([OK, NOT_LINKED], "SUCCESS", ["SUCCESS", "NOT_YET_LINK"]),
        ([NOT_LINKED], "SUCCESS", ["NOT_YET_LINK"]),
        ([PEER_NOT_TOLD], "UNLINK_FAILED", ["NOTIFY_PROMPT_UNLINK_FAILED"]),
        ([OK, TIMEOUT], "UNLINK_FAILED", ["SUCCESS", "WAIT_PROCESS_TIMEOUT"]),
        ([OK, REPEATED], "UNLINK_FAILED", ["SUCCESS", "REPEAT_REQUEST"]),
        ([IN_PROGRESS], "UNLINK_FAILED", ["PROCESSING_LINK"]),
    ],
)
@pytest.mark.parametrize("role", list(LLMRole))
def test_unlink_statuses(role, answers, overall, each):
    engine = Engine(*answers)
    found = links_of(engine, role).unlink(clusters(len(answers)), 500, False)
    assert found == (codes(overall)[0], codes(*each))
    assert engine.calls == [
        ("link_close", [(at + 1, None) for at in range(len(answers))], 500, False)
    ]


def test_unlink_with_other_addresses_is_refused():
    engine = Engine(OK, OK)
    links = links_of(engine)
    links.link(clusters(2), 500)
    engine.numbers = [OK]
    other = cluster(1, "10.0.0.99:26000")
    status, each = links.unlink([other, clusters(2)[1]], 500, True)
    assert status == LLMStatusCode.LLM_UNLINK_FAILED
    assert each == codes("PARAM_INVALID", "SUCCESS")
    assert engine.calls[-1] == ("link_close", [(2, None)], 500, True)
    same_ip = cluster(1, "10.0.0.1:1")
    assert links.unlink([same_ip], 500, True)[1] == codes("SUCCESS")
    assert links.unlink([other], 500, True)[1] == codes("SUCCESS")  # no link, nothing to compare


def test_unlink_of_a_busy_link():
    engine = Engine(OK)
    links = links_of(engine)
    engine.busy_links.enter(1)
    engine.busy_links.enter(1)
    engine.busy_links.leave(1)
    busy = (LLMStatusCode.LLM_UNLINK_FAILED, codes("LINK_BUSY"))
    assert links.unlink(clusters(1), 500, False) == busy
    assert engine.calls == []
    assert links.unlink(clusters(1), 500, True)[0] == LLMStatusCode.LLM_SUCCESS
    engine.busy_links.leave(1)
    assert links.unlink(clusters(1), 500, False)[0] == LLMStatusCode.LLM_SUCCESS


def test_one_call_at_a_time():
    import threading

    engine = Engine(OK)
    engine.hold = threading.Event()
    links = links_of(engine)
    first = Call(links.link, clusters(1), 500)
    wait_until(lambda: engine.calls)
    processing = (LLMStatusCode.LLM_PROCESSING_LINK, [])
    assert links.link(clusters(1), 500) == processing
    assert links.unlink(clusters(1), 500, False) == processing
    engine.hold.set()
    assert first.result()[0] == LLMStatusCode.LLM_SUCCESS
    assert links.unlink(clusters(1), 500, False)[0] == LLMStatusCode.LLM_SUCCESS


# ---- check -------------------------------------------------------------------------------------


def test_check():
    engine = Engine()
    links_of(engine).check(7)
    assert engine.calls == [("link_check", 7)]
    for bad, error in ((None, TypeError), ("1", TypeError), (-1, ValueError)):
        with pytest.raises(error):
            links_of(engine).check(bad)
    with refused(LLMException, "PROMPT"):
        links_of(engine, LLMRole.PROMPT).check(7)
    engine.busy_links.enter(7)
    with refused(LLMException, "cluster 7", "LLM_LINK_BUSY"):
        links_of(engine).check(7)
    links_of(engine).check(8)
