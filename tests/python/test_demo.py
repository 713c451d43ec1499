"""The demo is the main job: it runs to the end and says that the tokens are identical."""

import os
import pathlib
import subprocess
import sys

DEMO = pathlib.Path(__file__).resolve().parents[2] / "examples" / "demo"


def run_demo(*arguments):
    return subprocess.run(
        [sys.executable, str(DEMO / "demo.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=dict(os.environ, XDG_CACHE_HOME="/nonexistent"),
    )


def test_random_model_gives_identical_tokens_in_two_processes():
    done = run_demo("--model", "random", "--layers", "4", "--tokens", "6", "--prompt", "hello")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tokens:   6, identical to a single-process run" in done.stdout
    # 5 tokens x 3 heads x 64 floats x 4 bytes, keys and values of 4 layers
    assert f"moved:    {5 * 3 * 64 * 4 * 2 * 4} bytes" in done.stdout


def test_a_missing_model_file_is_named():
    done = run_demo("--model", "no-such-file.gguf")
    assert done.returncode == 2
    assert "no-such-file.gguf" in done.stderr
