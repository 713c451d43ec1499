"""Run the benchmarks and print one table: ours, the limit beside it, ratio, target.

Usage: run.py [BUILD_DIR] [--only NAME ...] [--json FILE]

Runs every bench_* program of the build directory, one after the other, and writes all results and
what is known about the machine to FILE (default: build/bench.json). Numbers are reported, never a
test: the exit status is 0 unless a program failed.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
TIME_LIMIT_S = 1800
COLUMNS = ("what", "ours", "limit", "ratio", "target", "met")


def read_first(path, prefix=""):
    """The rest of the first line that begins with `prefix`, "" when there is none."""
    try:
        for line in pathlib.Path(path).read_text().splitlines():
            if line.startswith(prefix):
                return line[len(prefix) :].strip(" \t:")
    except OSError:
        pass
    return ""


def machine():
    return {
        "cpu": read_first("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": read_first("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "congestion": read_first("/proc/sys/net/ipv4/tcp_congestion_control"),
        "load_before": round(os.getloadavg()[0], 2),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def programs(build, only):
    found = [p for p in sorted(build.glob("bench_*")) if p.is_file() and os.access(p, os.X_OK)]
    return [p for p in found if not only or p.name.removeprefix("bench_") in only]


def run(program, folder):
    """The program's report, or None when it failed. What it prints for people goes on."""
    report = pathlib.Path(folder) / f"{program.name}.json"
    print(f"\n== {program.name}", flush=True)
    try:
        done = subprocess.run(
            [program, "--json", report], stdout=subprocess.PIPE, text=True, timeout=TIME_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        print(f"{program.name}: no end within {TIME_LIMIT_S} s", file=sys.stderr)
        return None
    # Some take a file, some print the report instead of their table.
    text = report.read_text() if report.exists() else done.stdout
    if text != done.stdout:
        print(done.stdout, end="", flush=True)
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if done.returncode != 0 or parsed is None:
        reason = f"exit status {done.returncode}" if done.returncode else "report cannot be read"
        print(f"{program.name}: {reason}", file=sys.stderr)
        return None
    return parsed


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def figures(values, unit):
    spread = f"{number(values['median'])} ({number(values['min'])} - {number(values['max'])})"
    return f"{spread} {unit}".strip()


def row_of(result):
    """A row from a report with "results": every column has its own field."""
    has_limit = "limit" in result
    target = ""
    met = ""
    if "target" in result:
        sign = ">=" if result["target_is"] == "least" else "<="
        of = "x" if has_limit else f" {result['unit']}"
        target = f"{sign} {result['target']:g}{of}"
        met = "yes" if result["met"] else "no"
    return (
        result["what"],
        figures(result["ours"], result["unit"]),
        figures(result["limit"], result["unit"]) if has_limit else "",
        f"{result['ratio']['median']:.2f}" if has_limit else "",
        target,
        met,
    )


def row_of_case(bench, case):
    """A row from a report with "cases": the limit comes first, then ours; units end their names."""
    sides = [(key, value) for key, value in case.items() if isinstance(value, dict)]
    (_, limit), (name, ours) = sides[0], sides[-1]
    unit = name.split("_", 1)[-1].replace("msegments_s", "M segments/s").replace("_", " ")
    return (
        f"{bench}: {case['name']}",
        figures(ours, unit),
        figures(limit, unit) if len(sides) > 1 else "",
        f"{case['ratio']:.2f}" if "ratio" in case else "",
        "",
        "",
    )


def rows(report):
    if "results" in report:
        return [row_of(result) for result in report["results"]]
    return [row_of_case(report["bench"], case) for case in report.get("cases", [])]


def print_table(table):
    widths = [max(len(row[i]) for row in table) for i in range(len(COLUMNS))]
    for row in table:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", nargs="?", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="as in: --only pull memory")
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "build" / "bench.json")
    options = parser.parse_args()

    found = programs(options.build, options.only)
    if not found:
        print(f"no bench_* programs to run in {options.build}", file=sys.stderr)
        return 1
    facts = machine()
    table = [COLUMNS]
    reports = {}
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for program in found:
            report = run(program, folder)
            if report is None:
                failed.append(program.name)
                continue
            reports[program.name.removeprefix("bench_")] = report
            table += rows(report)
    print(
        f"\n== {facts['cpu']}, {facts['cores']} cores, {facts['memory']}, Linux {facts['kernel']}, "
        f"{facts['date']}; median (least - most)\n"
    )
    print_table(table)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(
        json.dumps({"machine": facts, "failed": failed, "reports": reports}, indent=1) + "\n"
    )
    print(f"\nwritten to {options.json}")
    if failed:
        print(f"failed: {' '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
