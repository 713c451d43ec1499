"""What the house rules say about files and can be checked by reading them.

- A file includes its own folder and lower ranks, never a sibling of the same rank.
- python/ext, cli and examples include datadist.h and nothing else of ours.
- A C file has at most 600 lines and a stem of its own; a function has at most 70 lines.
- No absolute path of a developer's machine stands in a tracked file.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
RANKS = {
    "base": 0,
    "model": 1,
    "plan": 2,
    "wire": 2,
    "device": 2,
    "transport": 3,
    "store": 4,
    "link": 4,
    "xfer": 5,
    "api": 6,
}
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 70


def tracked():
    out = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [pathlib.Path(line) for line in out.splitlines() if (ROOT / line).exists()]


def includes(text):
    return re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)


def check_layers(path, text):
    parts = path.parts
    if parts[0] in ("cli", "examples") or parts[:2] == ("python", "ext"):
        for name in re.findall(r'^#include ["<]([^">]+)[">]', text, re.MULTILINE):
            if "/" in name and name.split("/")[0] in RANKS:
                yield f"{path}: includes {name}; only datadist.h is for it"
    if parts[0] != "src":
        return
    own = parts[1]
    for name in includes(text):
        other = name.split("/")[0]
        if name == "datadist.h" or other == own:
            continue
        if other not in RANKS:
            yield f"{path}: includes {name}, which is in no folder of src"
        elif RANKS[other] >= RANKS[own]:
            yield f"{path}: {own} (rank {RANKS[own]}) includes {name} (rank {RANKS[other]})"


def check_sizes(path, text):
    lines = text.splitlines()
    if len(lines) > MAX_FILE_LINES:
        yield f"{path}: {len(lines)} lines, at most {MAX_FILE_LINES}"
    if path.suffix != ".c":
        return
    begin = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            begin = number
        elif line == "}" and begin is not None:
            if number - begin - 1 > MAX_FUNCTION_LINES:
                yield f"{path}:{begin}: function of {number - begin - 1} lines"
            begin = None


def check_words(path, text):
    for word in ("/work/", "/root/", "/home/", "/tmp/"):
        for number, line in enumerate(text.splitlines(), 1):
            if word in line and path.name != "check_tree.py":
                yield f"{path}:{number}: path of a machine: {line.strip()[:60]}"


def main():
    problems = []
    stems = {}
    for path in tracked():
        if path.suffix not in (".c", ".h", ".py", ".md", ".sh", ".txt", ".toml", ".in", "", ".pml"):
            continue
        try:
            text = (ROOT / path).read_text()
        except UnicodeDecodeError:
            continue
        problems += check_words(path, text)
        if path.suffix in (".c", ".h"):
            problems += check_layers(path, text)
            problems += check_sizes(path, text)
        if path.suffix == ".c" and path.parts[0] == "src":
            if path.stem in stems:
                problems.append(f"{path}: same stem as {stems[path.stem]}")
            stems[path.stem] = path
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
