"""Argument checks, statuses and the log: types of exceptions and their words."""

import logging
import os
import pickle
import subprocess
import sys
import threading

import pytest

from llm_datadist import LLMException, LLMStatusCode, Status
from llm_datadist.status import (
    classic_status,
    code_2_status,
    handle_llm_status,
    raise_if_false,
    raise_if_true,
)
from llm_datadist.utils import log, utils

WIDTHS = {
    utils.check_uint64: ("uint64", 0, 2**64 - 1),
    utils.check_int64: ("int64", -(2**63), 2**63 - 1),
    utils.check_uint32: ("uint32", 0, 2**32 - 1),
    utils.check_int32: ("int32", -(2**31), 2**31 - 1),
    utils.check_uint16: ("uint16", 0, 2**16 - 1),
    utils.check_uint8: ("uint8", 0, 2**8 - 1),
}


@pytest.mark.parametrize(("check", "limits"), WIDTHS.items())
def test_width_check(check, limits):
    width, low, high = limits
    for good in (low, high, 0, True):
        check("size", good)
        check(good)
    for bad in (low - 1, high + 1):
        with pytest.raises(ValueError, match=f"size is out of range, {bad} is not a {width} value"):
            check("size", bad)
        with pytest.raises(ValueError, match="out of range"):
            check(bad)
    for bad in (None, 1.0, "1", b"1", [1]):
        with pytest.raises(TypeError, match=r"size only support \['int'\], but got"):
            check("size", bad)


def test_width_check_refuses_numpy_integers():
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match="only support"):
        utils.check_uint64("size", numpy.int64(1))
    with pytest.raises(TypeError, match="inner type only support"):
        utils.check_list_uint64("sizes", [1, numpy.int64(1)])


@pytest.mark.parametrize(
    ("check", "bad"),
    [
        (utils.check_list_int32, [0, 1, 2**64 - 1]),
        (utils.check_list_int64, [0, 2**63]),
        (utils.check_list_uint64, [0, -1]),
    ],
)
def test_list_width_check(check, bad):
    check("sizes", [])
    check("sizes", (1, 2, True))
    check([1])
    with pytest.raises(ValueError, match="out of range"):
        check("sizes", bad)
    with pytest.raises(ValueError, match="out of range"):
        check(bad)
    with pytest.raises(TypeError, match="sizes inner type only support"):
        check("sizes", [1, "2"])
    for not_a_list in (None, 1, "12", {1}):
        with pytest.raises(TypeError, match="sizes only support"):
            check("sizes", not_a_list)


def test_isinstance_check_names_argument_wanted_and_found():
    utils.check_isinstance("name", None, str)
    utils.check_isinstance("name", True, (str, int))
    with pytest.raises(TypeError, match=r"name only support \['str', 'int'\], but got float"):
        utils.check_isinstance("name", 1.0, [str, int])
    with pytest.raises(TypeError, match="but got NoneType"):
        utils.check_isinstance("name", None, str, allow_none=False)


def test_dict_check():
    utils.check_dict("map", {1: "a"}, int, str)
    utils.check_dict("map", None, int, str)
    with pytest.raises(TypeError, match="map dict key only support"):
        utils.check_dict("map", {"1": "a"}, int, str)
    with pytest.raises(TypeError, match="map dict value only support"):
        utils.check_dict("map", {1: 2}, int, str)
    with pytest.raises(TypeError, match="map only support"):
        utils.check_dict("map", [], int, str)


def test_positive_or_default():
    assert utils.check_positive_or_set_default("n", None, 7) == 7
    assert utils.check_positive_or_set_default("n", 3, 7) == 3
    with pytest.raises(LLMException):
        utils.check_positive_or_set_default("n", 0, 7)


def test_exception_carries_a_status():
    assert isinstance(LLMException("text"), RuntimeError)
    assert LLMException("text").status_code == LLMStatusCode.LLM_SUCCESS
    error = LLMException("text", status_code=LLMStatusCode.LLM_TIMEOUT)
    assert str(error) == "text"
    assert error.status_code is LLMStatusCode.LLM_TIMEOUT
    with pytest.raises(AttributeError):
        error.status_code = LLMStatusCode.LLM_FAILED
    with pytest.raises(TypeError):
        LLMException("text", code=1)
    copy = pickle.loads(pickle.dumps(error))
    assert copy.status_code is LLMStatusCode.LLM_TIMEOUT


def test_status_object():
    assert Status(LLMStatusCode.LLM_SUCCESS).is_ok()
    assert not Status(LLMStatusCode.LLM_FAILED).is_ok()
    assert Status(LLMStatusCode.LLM_FAILED).status_code is LLMStatusCode.LLM_FAILED


@pytest.mark.parametrize(
    ("number", "status", "classic"),
    [
        (0, "LLM_SUCCESS", "LLM_SUCCESS"),
        (0x5010B002, "LLM_KV_CACHE_NOT_EXIST", "LLM_KV_CACHE_NOT_EXIST"),
        (0x5010B01A, "LLM_TIMEOUT", "LLM_WAIT_PROCESS_TIMEOUT"),
        (0x5010B01C, "LLM_OUT_OF_MEMORY", "LLM_DEVICE_OUT_OF_MEMORY"),
        (0x5010B014, "LLM_FAILED", "LLM_FAILED"),
        (0x5010B015, "LLM_FAILED", "LLM_FAILED"),
        (0x5010B017, "LLM_FAILED", "LLM_FAILED"),
        (0x12345678, "LLM_FAILED", "LLM_FAILED"),
        (0xFFFFFFFF, "LLM_FAILED", "LLM_FAILED"),
    ],
)
def test_numbers_of_the_engine_become_codes(number, status, classic):
    assert code_2_status(number) is LLMStatusCode[status]
    assert classic_status(number) is LLMStatusCode[classic]


def test_raising_helpers():
    handle_llm_status(LLMStatusCode.LLM_SUCCESS, "call", "context")
    with pytest.raises(
        LLMException, match="^call failed, error code is LLMStatusCode.LLM_TIMEOUT, context.$"
    ) as caught:
        handle_llm_status(LLMStatusCode.LLM_TIMEOUT, "call", "context")
    assert caught.value.status_code is LLMStatusCode.LLM_TIMEOUT
    raise_if_false(True, "text")
    raise_if_true(False, "text")
    for helper, condition in ((raise_if_false, False), (raise_if_true, True)):
        with pytest.raises(LLMException, match="text") as caught:
            helper(condition, "text")
        assert caught.value.status_code is LLMStatusCode.LLM_PARAM_INVALID
        with pytest.raises(LLMException) as caught:
            helper(condition, "text", LLMStatusCode.LLM_FAILED)
        assert caught.value.status_code is LLMStatusCode.LLM_FAILED


def test_param_invalid_is_logged(capsys):
    with pytest.raises(LLMException):
        raise_if_false(False, "a text with %s in it")
    line = capsys.readouterr().out
    assert line.startswith("[ERROR] LLM_DATADIST(")
    assert "a text with %s in it" in line


def test_log_line_names_its_caller(capsys):
    log.error("value %s", 7)
    line = capsys.readouterr().out
    assert "[test_checks.py:" in line
    assert "test_log_line_names_its_caller: value 7" in line
    assert str(threading.get_ident()) in line


@pytest.mark.parametrize(
    ("level", "lines"),
    [
        ("0", ["debug", "info", "warn", "error"]),
        ("1", ["info", "warn", "error"]),
        ("2", ["warn", "error"]),
        ("3", ["error"]),
        ("x", ["error"]),
        (None, ["error"]),
    ],
)
def test_log_level_comes_from_the_environment(level, lines):
    env = {name: value for name, value in os.environ.items() if name != "ASCEND_GLOBAL_LOG_LEVEL"}
    if level is not None:
        env["ASCEND_GLOBAL_LOG_LEVEL"] = level
    code = (
        "from llm_datadist.utils import log; log.get_logger().debug('debug');"
        "log.info('info'); log.warn('warn'); log.error('error')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env
    )
    assert [line.split()[-1] for line in done.stdout.splitlines()] == lines, done.stderr


def test_find_caller_works_at_the_top_of_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(log._find_caller()))
    thread.start()
    thread.join(10)
    assert os.path.basename(found[0][0]) == "test_checks.py"
    assert found[0][3] is None
    assert log._find_caller(stack_level=10_000)[0] == "(unknown file)"
    assert log._find_caller(stack_info=True)[3].startswith("Stack (most recent call last):")


def test_logger_is_ours_alone():
    logger = log.get_logger()
    assert logger.name == "LLM_DATADIST"
    assert logger is log.get_logger()
    assert not logger.propagate
    own = [handler for handler in logger.handlers if type(handler).__module__ == log.__name__]
    assert len(own) == 1 and isinstance(own[0], logging.StreamHandler)
