"""The extension of the Python package: all C sources in one file, nothing else needed to import it."""

import sys
import sysconfig
from glob import glob

from setuptools import Extension, setup

# One file for 3.11 and up: the buffer protocol joined the stable ABI there.
ABI3 = sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    ext_modules=[
        Extension(
            "llm_datadist._datadist",
            sources=sorted(glob("src/*/*.c") + glob("python/ext/*.c")),
            depends=sorted(glob("src/*/*.h") + glob("python/ext/*.h") + ["include/datadist.h"]),
            include_dirs=["include", "src"],
            define_macros=[("_GNU_SOURCE", "1"), ("NDEBUG", "1"), ("DD_STATIC", "1")]
            + ([("Py_LIMITED_API", "0x030b0000")] if ABI3 else []),
            extra_compile_args=["-std=gnu11", "-O3", "-fvisibility=hidden", "-pthread"],
            extra_link_args=["-pthread"],
            py_limited_api=ABI3,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if ABI3 else {},
)
