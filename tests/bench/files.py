"""Large directories: a list of 100,000 entries and a search over 200,000 files, beside the reference, and how long
GET /health takes while they run. Bounded (about two minutes), ends what it started, removes what it made.

    python3 tests/bench/files.py [--server PROGRAM] [--reference PROGRAM] [--base DIR_ON_A_TMPFS] [--json]
"""

import argparse
import http.client
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time

PORT = int(os.environ.get("BENCH_PORT", "19970"))
FLAT, FOLDERS, EACH = 100_000, 200, 1_000
POLICY = {"endpoints": {"files_list": {"limits": {"max_entries": 200_000}}}}
JOBS = {
    "list 100,000 entries": ("GET", "/files/list?path=flat&max_entries=100000", None),
    "list 1,000 of 100,000": ("GET", "/files/list?path=flat", None),
    "search 200,000 files": ("POST", "/files/search", {"path": "tree", "pattern": "no-such-*"}),
}


def make(base):
    os.makedirs(f"{base}/flat")
    for i in range(FLAT):
        os.close(os.open(f"{base}/flat/file-{i:06}.txt", os.O_CREAT | os.O_WRONLY, 0o644))
    for d in range(FOLDERS):
        folder = f"{base}/tree/d{d % 10}/e{d:03}"
        os.makedirs(folder)
        for i in range(EACH):
            os.close(os.open(f"{folder}/file-{i:04}.txt", os.O_CREAT | os.O_WRONLY, 0o644))


def ask(method, path, body):
    c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
    began = time.perf_counter()
    c.request(method, path, json.dumps(body) if body else None)
    answer = c.getresponse()
    size = 0
    first = answer.read(65536)
    size = len(first)
    while piece := answer.read(1 << 20):
        size += len(piece)
    took = time.perf_counter() - began
    c.close()
    assert answer.status == 200, first[:300]
    return took, size


def probe(stop, out):
    """Latencies in ms of /health, one request per millisecond at most, until told to stop."""
    c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
    c.connect()
    took = []
    while not stop.is_set():
        began = time.perf_counter()
        c.request("GET", "/health")
        c.getresponse().read()
        took.append((time.perf_counter() - began) * 1e3)
        time.sleep(0.001)
    out.put(took)


def serve(program, base, policy):
    server = subprocess.Popen([program, "serve", "--host", "127.0.0.1", "--port", str(PORT), "--pty-port", str(PORT + 1),
                               "--base-dir", base, "--policy", policy], cwd=base, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    for _ in range(2000):
        try:
            ask("GET", "/health", None)
            return server
        except OSError:
            time.sleep(0.01)
    sys.exit(f"{program} does not answer")


def measure(program, base, policy, runs):
    server = serve(program, base, policy)
    got = {}
    try:
        for name, job in JOBS.items():
            ask(*job)
            times = [ask(*job) for _ in range(runs)]
            stop, out = multiprocessing.Event(), multiprocessing.Queue()
            watcher = multiprocessing.Process(target=probe, args=(stop, out))
            watcher.start()
            until = time.monotonic() + 3
            while time.monotonic() < until:
                ask(*job)
            stop.set()
            health = sorted(out.get())
            watcher.join()
            got[name] = {"ms": round(statistics.median(t for t, _ in times) * 1e3, 1), "bytes": times[0][1],
                         "health_p50_ms": round(health[len(health) // 2], 2),
                         "health_p99_ms": round(health[int(len(health) * 0.99)], 2), "health_n": len(health)}
    finally:
        server.terminate()
        server.wait()
    return got


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="build/server/abx-server")
    parser.add_argument("--reference", default=os.environ.get("BENCH_REFERENCE"))
    parser.add_argument("--base")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.base) as base:
        make(base)
        policy = f"{base}/policy.json"
        with open(policy, "w", encoding="utf-8") as f:
            json.dump(POLICY, f)
        ours = measure(os.path.abspath(options.server), base, policy, 9)
        other = measure(options.reference, base, policy, 3) if options.reference else {}
    if options.json:
        print(json.dumps({"abx": ours, "reference": other}, indent=1))
        return
    for name, row in ours.items():
        line = f"{name}: {row['ms']} ms, /health meanwhile p50 {row['health_p50_ms']} p99 {row['health_p99_ms']} ms"
        if name in other:
            there = other[name]
            line += (f"; reference {there['ms']} ms ({there['ms'] / row['ms']:.1f} times), "
                     f"/health p99 {there['health_p99_ms']} ms")
        print(line)


if __name__ == "__main__":
    main()
