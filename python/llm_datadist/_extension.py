"""The extension module, or an ImportError that says what to do."""

import sysconfig

try:
    from llm_datadist import _datadist
except ImportError as error:
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        advice = "free-threaded Python is not supported yet, use one with the interpreter lock"
    else:
        advice = "build it with `./dev test` and put build/release/python on PYTHONPATH"
    raise ImportError(
        f"llm_datadist needs its extension module _datadist, which did not load ({error}); {advice}"
    ) from error

__all__ = ["_datadist"]
