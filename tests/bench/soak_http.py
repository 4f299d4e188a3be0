#!/usr/bin/env python3
"""Many requests against one server: no sanitizer report, no growth of memory, no descriptor lost.

    tests/bench/soak_http.py --server build-asan/server/abx-server --commands build-asan/tests/commands_fixture.so
    tests/bench/soak_http.py --requests 1000000

Needs wrk. The first round of each target warms up; growth is counted from there on. Exits 1 when something grew,
was reported or answered wrongly.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "conformance"))
os.environ.setdefault("ASAN_OPTIONS", "quarantine_size_mb=4:thread_local_quarantine_size_kb=64")

from abxconf.server import running  # noqa: E402

# name: (method, path, body, header, the answers' status)
TARGETS = {
    "health": ("GET", "/health", None, None, 200),
    "hello": ("POST", "/commands/hello", '{"name": "soak"}', None, 200),
    "stat": ("GET", "/files/stat?path=f", None, None, 200),
    "not_found": ("GET", "/nope", None, None, 404),
    "bad_json": ("POST", "/shell", '{"command": ', None, 400),
    "wrong_argument": ("POST", "/commands/add", '{"a": "x", "b": 1}', None, 400),
    "outside": ("GET", "/files/stat?path=/etc/passwd", None, None, 403),
    "bad_head": ("POST", "/shell", None, "Transfer-Encoding: gzip", 400),
    "too_large": ("POST", "/shell", "{}", "X-Pad: " + "a" * 60000, 400),
}

SCRIPT = """
wrk.method = "%s"
wrk.path = "%s"
wrk.body = %s
%s
local wrong = 0
function response(status, headers, body)
  if status ~= %d then
    wrong = wrong + 1
    if wrong <= 10 then print("status " .. status) end
  end
end
"""


def lua(text):
    return "nil" if text is None else "[==[" + text + "]==]"


def script(name: str, folder: str) -> str:
    method, path, body, header, status = TARGETS[name]
    line = ""
    if header:
        key, _, value = header.partition(": ")
        line = f'wrk.headers["{key}"] = "{value}"'
    where = os.path.join(folder, name + ".lua")
    with open(where, "w", encoding="utf-8") as out:
        out.write(SCRIPT % (method, path, lua(body), line, status))
    return where


def rss_kb(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def settled(pid: int, base: int) -> int:
    """Descriptors, once the connections of the last round have gone."""
    until = time.monotonic() + 10
    while descriptors(pid) > base and time.monotonic() < until:
        time.sleep(0.1)
    return descriptors(pid)


def run_round(server, where: str, seconds: float):
    text = subprocess.run(
        ["wrk", "-t1", "-c32", f"-d{max(1, int(seconds))}s", "--timeout", "20s", "-s", where,
         f"http://127.0.0.1:{server.port}/"],
        capture_output=True, text=True, timeout=seconds + 60, check=False).stdout
    count = int(re.search(r"(\d+) requests in", text).group(1))
    wrong = re.findall(r"^status \d+$", text, re.M)
    return count, wrong


def soak(server, name: str, want: int, folder: str, grow_kb: int) -> list[str]:
    pid, faults = server.process.pid, []
    where = script(name, folder)
    base = descriptors(pid)
    done, wrong = run_round(server, where, 2)
    rate = max(done / 2, 1)
    first = rss_kb(pid)
    while done < want:
        count, odd = run_round(server, where, min(20, (want - done) / rate + 1))
        done += count
        wrong += odd
        if count == 0:
            faults.append("no answers")
            break
    last, left = rss_kb(pid), settled(pid, base)
    print(f"{name:16} {done:9} requests {rate:8.0f}/s   RSS {first:7} -> {last:7} kB   descriptors {base} -> {left}",
          flush=True)
    if last - first > grow_kb:
        faults.append(f"{name}: memory grew by {last - first} kB")
    if left > base:
        faults.append(f"{name}: {left - base} descriptors were lost")
    if wrong:
        faults.append(f"{name}: {len(wrong)} wrong answers, e.g. {wrong[0]}")
    return faults


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--server", default=os.path.join(ROOT, "build", "server", "abx-server"))
    args.add_argument("--commands", default=None)
    args.add_argument("--requests", type=int, default=90000, help="all targets together (90000)")
    args.add_argument("--grow-kb", type=int, default=4096, help="growth of memory that is no fault (4096)")
    args.add_argument("--only", action="append", choices=sorted(TARGETS))
    options = args.parse_args()
    names = options.only or [n for n in TARGETS if options.commands or "/commands/" not in TARGETS[n][1]]
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder, running(
            os.path.abspath(options.server),
            commands=os.path.abspath(options.commands) if options.commands else None) as server:
        with open(os.path.join(server.work, "f"), "w", encoding="utf-8") as out:
            out.write("x")
        for name in names:
            faults += soak(server, name, options.requests // len(names), folder, options.grow_kb)
            if not server.alive():
                faults.append(f"{name}: the server has ended")
                break
        status = server.terminate()
        log = server.log_tail(100000)
        if status != 0:
            faults.append(f"exit status {status}")
        if "Sanitizer" in log or "runtime error" in log:
            faults.append("a sanitizer reported:\n" + log[-5000:])
    for fault in faults:
        print("FAULT", fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
