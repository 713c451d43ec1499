"""The shared library exports exactly the functions that datadist.h declares, and nothing else is
visible outside of the extension but its entry.

A function that is visible across files is declared in datadist.h, or named ddi_<noun>_...: the noun is
the stem of its file, or the stem or a struct of a header beside it.

Usage: check_symbols.py BUILD_DIR
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


# Verbs that serve as nouns, by stem.
ALSO = {"status": {"fail", "error"}, "message": {"encode", "decode"}}


def nouns(source):
    found = {source.stem} | ALSO.get(source.stem, set())
    for header in source.parent.glob("*.h"):
        found.add(header.stem)
        found.update(re.findall(r"^struct ddi_(\w+)", header.read_text(), re.MULTILINE))
    return found


def check_name(name, source):
    if any(name == f"ddi_{noun}" or name.startswith(f"ddi_{noun}_") for noun in nouns(source)):
        return None
    return f"defined in {source.relative_to(ROOT)}, wanted ddi_{source.stem}_..."


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
    sources = {path.stem: path for path in ROOT.glob("src/*/*.c")}
    for line in nm("-A", "--defined-only", "-g", f"{build}/libdatadist.a").splitlines():
        where, _, name = line.split()
        source = sources[where.split(":")[1].split(".")[0]]
        problem = None if name in wanted else check_name(name, source)
        if problem:
            problems.append(f"{name}: {problem}")
    for extension in pathlib.Path(build).glob("python/llm_datadist/_datadist*.so"):
        for line in nm("-D", "--defined-only", str(extension)).splitlines():
            if line.split()[-1] != "PyInit__datadist":
                problems.append(f"{line.split()[-1]}: exported by {extension.name}")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
