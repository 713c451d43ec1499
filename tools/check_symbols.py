"""The shared library exports exactly the functions that datadist.h declares, and every function that
is visible across files is named dd_... or ddi_<stem or its header's stem>_....

Usage: check_symbols.py BUILD_DIR
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def declared():
    text = (ROOT / "include/datadist.h").read_text()
    return set(re.findall(r"DD_API [^;(]*?\*?(dd_\w+)\(", text))


def nm(*arguments):
    return subprocess.run(["nm", *arguments], check=True, capture_output=True, text=True).stdout


def main(build):
    problems = []
    exported = {
        line.split()[-1].split("@")[0]
        for line in nm("-D", "--defined-only", f"{build}/libdatadist.so").splitlines()
    }
    wanted = declared()
    for name in sorted(exported ^ wanted):
        where = "not declared in datadist.h" if name in exported else "not exported"
        problems.append(f"{name}: {where}")
    for line in nm("--defined-only", "-g", f"{build}/libdatadist.a").splitlines():
        parts = line.split()
        if len(parts) == 3 and not parts[2].startswith(("dd_", "ddi_")):
            problems.append(f"{parts[2]}: a name of the library begins with dd_ or ddi_")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
