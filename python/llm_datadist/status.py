"""Status codes, the exception that carries them, and how numbers of the engine become codes."""

from __future__ import annotations

from llm_datadist._enum import NamedIntEnum
from llm_datadist.utils import log

__all__ = [
    "LLMException",
    "LLMStatusCode",
    "Status",
    "classic_status",
    "code_2_status",
    "handle_llm_status",
    "raise_if_false",
    "raise_if_true",
]


class LLMStatusCode(NamedIntEnum):
    """What a call came to. Numbers are those that the engine and its peers log."""

    LLM_SUCCESS = 0
    LLM_FAILED = 0xFFFFFFFF
    LLM_PARAM_INVALID = 0x5010B005
    LLM_WAIT_PROCESS_TIMEOUT = 0x5010B001
    LLM_KV_CACHE_NOT_EXIST = 0x5010B002
    LLM_REPEAT_REQUEST = 0x5010B003
    LLM_REQUEST_ALREADY_COMPLETED = 0x5010B004
    LLM_ENGINE_FINALIZED = 0x5010B006
    LLM_NOT_YET_LINK = 0x5010B007
    LLM_ALREADY_LINK = 0x5010B008
    LLM_LINK_FAILED = 0x5010B009
    LLM_UNLINK_FAILED = 0x5010B00A
    LLM_NOTIFY_PROMPT_UNLINK_FAILED = 0x5010B00B
    LLM_CLUSTER_NUM_EXCEED_LIMIT = 0x5010B00C
    LLM_PROCESSING_LINK = 0x5010B00D
    LLM_DEVICE_OUT_OF_MEMORY = 0x5010B00E
    LLM_PREFIX_ALREADY_EXIST = 0x5010B00F
    LLM_PREFIX_NOT_EXIST = 0x5010B010
    LLM_SEQ_LENOVERLIMIT = 0x5010B011
    LLM_NO_FREE_BLOCK = 0x5010B012
    LLM_BLOCKS_OUT_OF_MEMORY = 0x5010B013
    LLM_EXIST_LINK = 0x5010B018
    LLM_FEATURE_NOT_ENABLED = 0x5010B019
    LLM_TIMEOUT = 0x5010B01A
    LLM_LINK_BUSY = 0x5010B01B
    LLM_OUT_OF_MEMORY = 0x5010B01C
    LLM_DEVICE_MEM_ERROR = 507053
    LLM_SUSPECT_REMOTE_ERROR = 507057
    LLM_UNKNOWN_ERROR = -1


class LLMException(RuntimeError):
    """A failed call: a text for the person on call, and a status for the program.

    `status_code` is given by keyword. Without it the exception reports LLM_SUCCESS, so whoever
    raises one passes it.
    """

    def __init__(self, *args, status_code: LLMStatusCode = LLMStatusCode.LLM_SUCCESS):
        super().__init__(*args)
        self._status_code = status_code

    @property
    def status_code(self) -> LLMStatusCode:
        """The status of the call that failed."""
        return self._status_code


class Status:
    """A status code as an object."""

    def __init__(self, status: LLMStatusCode):
        self._status = status

    def is_ok(self) -> bool:
        """Return whether the status is LLM_SUCCESS."""
        return self._status == LLMStatusCode.LLM_SUCCESS

    @property
    def status_code(self) -> LLMStatusCode:
        """The status code itself."""
        return self._status


_BY_NUMBER = {int(code): code for code in LLMStatusCode}

# The engine has one time-out and one out-of-memory status; the classic interface has its own.
_CLASSIC = {
    LLMStatusCode.LLM_TIMEOUT: LLMStatusCode.LLM_WAIT_PROCESS_TIMEOUT,
    LLMStatusCode.LLM_OUT_OF_MEMORY: LLMStatusCode.LLM_DEVICE_OUT_OF_MEMORY,
}


def code_2_status(code: int) -> LLMStatusCode:
    """Turn a status number of the engine into a code; an unknown one becomes LLM_FAILED."""
    return _BY_NUMBER.get(code, LLMStatusCode.LLM_FAILED)


def classic_status(code: int) -> LLMStatusCode:
    """Turn a status number of the engine into the code that the classic interface reports."""
    status = code_2_status(code)
    return _CLASSIC.get(status, status)


def handle_llm_status(status: LLMStatusCode, call_tag: str, context: str) -> None:
    """Raise LLMException with `status` and a text that names the call, unless it is LLM_SUCCESS."""
    if status != LLMStatusCode.LLM_SUCCESS:
        raise LLMException(
            f"{call_tag} failed, error code is {status}, {context}.", status_code=status
        )


def raise_if_false(
    condition, text: str, status_code: LLMStatusCode = LLMStatusCode.LLM_PARAM_INVALID
) -> None:
    """Log `text` and raise LLMException with it, unless `condition` holds."""
    if not condition:
        log.error("%s", text)
        raise LLMException(text, status_code=status_code)


def raise_if_true(
    condition, text: str, status_code: LLMStatusCode = LLMStatusCode.LLM_PARAM_INVALID
) -> None:
    """Log `text` and raise LLMException with it if `condition` holds."""
    raise_if_false(not condition, text, status_code)
