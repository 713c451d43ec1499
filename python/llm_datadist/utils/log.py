"""The package's log: one logger, lines to standard output, level from the environment.

`ASCEND_GLOBAL_LOG_LEVEL` is read once, at first use: 0 debug, 1 info, 2 warning, anything else
error. The engine's own lines do not come through here.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback

__all__ = ["LOG_FORMAT", "error", "get_logger", "info", "warn"]

LOG_FORMAT = (
    "[%(levelname)s] %(name)s(%(process)d):%(asctime)s.%(msecs)03d "
    "[%(filename)s:%(lineno)d] %(thread)d %(funcName)s: %(message)s"
)

_LEVEL_VARIABLE = "ASCEND_GLOBAL_LOG_LEVEL"
_LEVELS = {"0": logging.DEBUG, "1": logging.INFO, "2": logging.WARNING}
_OWN_FILES = (os.path.normcase(logging.__file__), os.path.normcase(__file__))

_logger = None


class _StdoutHandler(logging.StreamHandler):
    """Write to what sys.stdout is when the line comes, not when the handler was made."""

    def __init__(self):
        logging.Handler.__init__(self)

    @property
    def stream(self):
        return sys.stdout


def _find_caller(stack_info: bool = False, stack_level: int = 1):
    """Return (file, line, function, stack text or None) of the code that logs.

    Takes the first frame outside this file and the logging package, `stack_level` - 1 frames
    further up. At the top of a stack it answers with the "(unknown ...)" names of logging.
    """
    frame = sys._getframe()
    while frame is not None and os.path.normcase(frame.f_code.co_filename) in _OWN_FILES:
        frame = frame.f_back
    while frame is not None and stack_level > 1:
        frame = frame.f_back
        stack_level -= 1
    if frame is None:
        return "(unknown file)", 0, "(unknown function)", None
    stack = None
    if stack_info:
        text = io.StringIO("Stack (most recent call last):\n")
        text.seek(0, io.SEEK_END)
        traceback.print_stack(frame, file=text)
        stack = text.getvalue().rstrip("\n")
    return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, stack


def get_logger() -> logging.Logger:
    """Return the package's logger, set up at the first call."""
    global _logger
    if _logger is None:
        logger = logging.getLogger("LLM_DATADIST")
        handler = _StdoutHandler()
        handler.setFormatter(logging.Formatter(LOG_FORMAT, datefmt="%Y-%m-%d %H:%M:%S"))
        logger.handlers = [handler]
        logger.findCaller = _find_caller
        logger.propagate = False
        logger.setLevel(_LEVELS.get(os.environ.get(_LEVEL_VARIABLE, ""), logging.ERROR))
        _logger = logger
    return _logger


def info(text: str, *args, **kwargs) -> None:
    """Log one line at level info; `text` and `args` as in logging."""
    get_logger().info(text, *args, **kwargs)


def warn(text: str, *args, **kwargs) -> None:
    """Log one line at level warning; `text` and `args` as in logging."""
    get_logger().warning(text, *args, **kwargs)


def error(text: str, *args, **kwargs) -> None:
    """Log one line at level error; `text` and `args` as in logging."""
    get_logger().error(text, *args, **kwargs)
