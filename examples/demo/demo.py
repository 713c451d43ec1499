"""The main job: a real LLM, prefill in one process, decode in another, the KV cache through datadist.

Starts prefill.py and decode.py, shows what they do, and compares the tokens with those of a run in
this one process. The exit status is 0 only when they are identical.
"""

import argparse
import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading

# Before numpy is loaded, here and in the children: sums must not depend on how many threads a process
# gets, or the tokens could differ for that reason alone.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import fetch  # noqa: E402
import numpy as np  # noqa: E402
import worker  # noqa: E402

import model as models  # noqa: E402

LIMIT_S = 600  # longest wait for one step of a child


def say(text, is_step=True):
    """Progress: one line that is written over; where output is no terminal, a line for each step."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text and is_step:
        print(text, file=sys.stderr, flush=True)


class Child:
    """A worker process. What it prints arrives in a queue, so that waiting has a limit."""

    def __init__(self, name):
        self.name = name
        self._lines = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / f"{name}.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C reaches this process, which ends the children
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            try:
                self._lines.put(json.loads(line))
            except ValueError:  # somebody's print; the facts after it still count
                print(f"{self.name}: {line}", end="", file=sys.stderr)
        self._lines.put(None)

    def order(self, **facts):
        try:
            self._process.stdin.write(json.dumps(facts) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; the next wait says how

    def wait(self, event, on_other=lambda fact: None):
        """The next fact with this event; others go to on_other."""
        while True:
            try:
                fact = self._lines.get(timeout=LIMIT_S)
            except queue.Empty:
                raise RuntimeError(f"{self.name}: nothing heard for {LIMIT_S} s") from None
            if fact is None:
                raise RuntimeError(f"{self.name} ended early, {self._status()}")
            if fact["event"] == event:
                return fact
            on_other(fact)

    def _status(self):
        try:
            return f"status {self._process.wait(timeout=10)}"
        except subprocess.TimeoutExpired:
            return "but still runs"

    def finish(self):
        """Let it close its engine. Raises RuntimeError when that went wrong."""
        self.order(end=True)
        try:
            status = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{self.name} does not end") from None
        if status != 0:
            raise RuntimeError(f"{self.name} ended with status {status}")

    def kill(self):
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def run_split(start):
    """Prefill and decode in two processes. Returns what they reported."""
    children = []
    try:
        for name in ("prefill", "decode"):
            children.append(Child(name))
        prefill, decode = children
        say("two processes load the model; prefill runs the prompt")
        for child in children:
            child.order(**start)
        ready = prefill.wait("ready")
        decode.wait("loaded")
        say("decode pulls the KV cache")
        decode.order(**{k: ready[k] for k in ("address", "first", "prompt_tokens")})
        pulled = decode.wait("pulled")
        say("decode generates")
        count = [0]

        def on_token(fact):
            count[0] += 1
            say(f"decode generates: token {count[0]} of {start['tokens']}", is_step=False)

        done = decode.wait("done", on_token)
        decode.finish()
        prefill.finish()
        return ready, pulled, done
    finally:
        for child in children:
            child.kill()


def run_alone(start):
    """The same in this process, without datadist. Returns (tokens, text)."""
    say("the same in one process, to compare")
    model, tokenizer = worker.load(start["model"], start["layers"])
    prompt = tokenizer.encode_chat(start["prompt"])
    dims = (len(prompt) + start["tokens"], model.shape.kv_heads, model.shape.head_size)
    cache = [(np.zeros(dims, np.float32), np.zeros(dims, np.float32)) for _ in model.layers]
    first = int(np.argmax(model.forward(prompt, cache, 0)))
    tokens = models.generate(model, cache, first, len(prompt), start["tokens"], tokenizer.stop)
    return tokens, tokenizer.decode(tokens)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", default="What is the capital of France? Tell me about it.")
    parser.add_argument("--tokens", type=int, default=32, help="tokens to generate at most")
    parser.add_argument(
        "--model", default="", metavar="FILE.gguf|random", help="default: SmolLM2 from PyPI"
    )
    parser.add_argument("--layers", type=int, default=30, help="layers of the random model")
    options = parser.parse_args()
    if options.tokens < 1 or options.layers < 1:
        parser.error("--tokens and --layers are at least 1")
    if options.prompt == "":
        parser.error("--prompt is empty")
    if options.model not in ("", "random"):
        try:
            with open(options.model, "rb") as file:
                if file.read(4) != b"GGUF":
                    parser.error(f"--model: {options.model} is no GGUF file")
        except OSError as error:
            parser.error(f"--model: {error}")
    return options


def main():
    options = parse()
    model = options.model or str(fetch.fetch(say))
    start = {
        "model": model,
        "layers": options.layers,
        "prompt": options.prompt,
        "tokens": options.tokens,
    }
    ready, pulled, done = run_split(start)
    tokens, text = run_alone(start)
    say("")

    ms, rate = pulled["seconds"] * 1e3, pulled["bytes"] / pulled["seconds"] / 1e9
    same = tokens == done["tokens"]
    computed = len(done["tokens"]) - 1  # the first one came from prefill
    speed = f" at {computed / done['seconds']:.0f}/s" if computed > 0 else ""
    print(f"prompt:   {options.prompt}")
    print(f"answer:   {done['text']}")
    print(
        f"tokens:   {len(done['tokens'])}{speed}, "
        f"{'identical to' if same else 'DIFFERENT from'} a single-process run"
    )
    print(f"moved:    {pulled['bytes']} bytes of KV cache in {ms:.2f} ms, {rate:.2f} GB/s")
    print(
        f"spared:   decode did not run the prompt's {ready['prompt_tokens']} tokens, "
        f"{ready['seconds'] * 1e3:.0f} ms of prefill: {ready['seconds'] / pulled['seconds']:.0f} times the pull"
    )
    if not same:
        print(f"expected: {tokens}\nfound:    {done['tokens']}\nexpected text: {text}")
        return 1
    return 0


def on_terminate(number, frame):
    sys.exit(128 + number)  # an exception, so the children are ended on the way out


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, on_terminate)
    try:
        sys.exit(main())
    except RuntimeError as error:
        say("")
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        say("")
        sys.exit(130)
