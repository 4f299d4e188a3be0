"""Programs through the API beside the machine's floor, in turns within one run so that both meet the same machine.
Bounded (about 40 s), ends what it started. Needs a C compiler and wrk.

    python3 tests/bench/process.py [build/server/abx-server]
"""

import http.client
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PORT = int(os.environ.get("BENCH_PORT", "19980"))


def wrk(script, clients, seconds):
    out = subprocess.run(["wrk", "-t1", f"-c{clients}", f"-d{seconds}", "-s", script, "--latency",
                          f"http://127.0.0.1:{PORT}/shell"], capture_output=True, text=True, check=True).stdout
    half, unit = re.search(r"50%\s+([\d.]+)(us|ms|s)", out).groups()
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", out).group(1))
    assert "Non-2xx" not in out
    return float(half) * {"us": 1e-3, "ms": 1, "s": 1e3}[unit], rate


def stream(command):
    """Milliseconds to the first output, to exit and to the end of the answer."""
    c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
    c.connect()
    start = time.perf_counter()
    c.request("POST", "/shell/stream", json.dumps({"command": command}))
    r = c.getresponse()
    text, first, end = b"", None, None
    while piece := r.read1(1 << 16):
        text += piece
        now = (time.perf_counter() - start) * 1e3
        if first is None and b"event: stdout" in text:
            first = now
        if end is None and b"event: exit" in text:
            end = now
    c.close()
    return first, end, text


def main():
    binary = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/server/abx-server")
    with tempfile.TemporaryDirectory() as work:
        floor = f"{work}/floor"
        subprocess.run(["cc", "-O2", "-o", floor, HERE / "floor/spawn_pipes.c", "-lpthread"], check=True)
        script = f"{work}/post.lua"
        pathlib.Path(script).write_text('wrk.method = "POST"\nwrk.body = \'{"command": "/bin/true"}\'\n')
        server = subprocess.Popen([binary, "serve", "--host", "127.0.0.1", "--port", str(PORT), "--pty-port",
                                   str(PORT + 1), "--base-dir", work], stderr=subprocess.DEVNULL)
        try:
            time.sleep(0.5)

            def at_floor(threads, total):
                return float(subprocess.run([floor, str(threads), str(total)], capture_output=True, text=True,
                                            check=True).stdout)

            one, eight = [], []
            for _ in range(3):
                each = 1e3 / at_floor(1, 1500)
                half, _rate = wrk(script, 1, 2)
                one.append((half / each, half, each))
                most = at_floor(2, 3000)
                _half, rate = wrk(script, 8, 2)
                eight.append((rate / most, rate, most))
            ratio, half, each = sorted(one)[1]
            print(f"one client: median {half:.2f} ms, floor {each:.2f} ms each: {ratio:.2f} (wanted <= 1.25)")
            ratio, rate, most = sorted(eight)[1]
            print(f"eight clients: {rate:.0f}/s, two-thread floor {most:.0f}/s: {ratio:.2f} (wanted >= 0.75)")

            spawn = 1e3 / at_floor(1, 1000)
            got = [stream("/bin/echo x") for _ in range(200)]
            print(f"stream: first output {statistics.median(g[0] for g in got):.2f} ms, exit "
                  f"{statistics.median(g[1] - g[0] for g in got):.2f} ms later (spawn alone {spawn:.2f} ms)")

            def peak():
                return int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{server.pid}/status").read()).group(1)) / 1024

            for path in ("/shell", "/shell/stream"):
                start = time.perf_counter()
                c = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
                c.request("POST", path, json.dumps({"command": "seq 1 13000000"}))
                r = c.getresponse()
                size = 0
                while piece := r.read(1 << 20):
                    size += len(piece)
                print(f"{path}: 100 MB in lines, {time.perf_counter() - start:.1f} s, {size / 1e6:.0f} MB on the wire, "
                      f"peak {peak():.1f} MiB")
        finally:
            server.terminate()
            server.wait(10)


if __name__ == "__main__":
    main()
