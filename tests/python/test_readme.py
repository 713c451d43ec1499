"""The README's examples run as printed."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("DD_BUILD", ROOT / "build" / "release"))


def snippet(language):
    text = (ROOT / "README.md").read_text()
    found = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(found) == 1, f"README has {len(found)} snippets in {language}"
    return found[0]


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_python_example_runs_as_printed(tmp_path):
    file = tmp_path / "example.py"
    file.write_text(snippet("python"))
    out = run([sys.executable, str(file)])
    assert "LLM_SUCCESS [1.0, 2.0, 3.0, 4.0]" in out


def test_c_example_runs_as_printed(tmp_path):
    file = tmp_path / "pull.c"
    file.write_text(snippet("c"))
    program = tmp_path / "pull"
    run(
        ["cc", str(file), f"-I{ROOT}/include", f"-L{BUILD}", "-ldatadist", f"-Wl,-rpath,{BUILD}"]
        + ["-o", str(program)]
    )
    assert run([str(program)]) == "same bytes\n"
