#!/usr/bin/env python3
"""Times /ports, /system/* and /packages with 3,000 connections and 500 listeners open, and /git/status on 20,000
files against `git status --porcelain`.

    system_git.py SERVER [--port P]      prints medians in milliseconds
"""
import argparse
import http.client
import os
import resource
import shutil
import socket
import statistics
import subprocess
import tempfile
import time


def get(connection, path):
    start = time.perf_counter()
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, (path, answer.status)
    return (time.perf_counter() - start) * 1000


def wait_for(port):
    for _ in range(200):
        try:
            return http.client.HTTPConnection("127.0.0.1", port, timeout=30) if socket.create_connection(
                ("127.0.0.1", port), 1) else None
        except OSError:
            time.sleep(0.02)
    raise SystemExit("the server does not answer")


def sockets(n_listeners, n_connections):
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    held = []
    for _ in range(n_listeners):
        s = socket.socket()
        s.bind(("127.0.0.1", 0))
        s.listen(64)
        held.append(s)
    for i in range(n_connections):
        c = socket.create_connection(held[i % n_listeners].getsockname())
        held += [c, held[i % n_listeners].accept()[0]]
    return held


def big_repository(path, files=20000):
    os.makedirs(path)
    subprocess.run(["git", "init", "-q", path], check=True)
    for i in range(files):
        if i % 100 == 0:
            os.makedirs(f"{path}/d{i // 2000}/s{i // 100}")
        with open(f"{path}/d{i // 2000}/s{i // 100}/f{i}", "w") as f:
            f.write(f"{i}\nline\n")
    subprocess.run("git add -A && git -c user.name=a -c user.email=a@b commit -qm x && sleep 1.1 && git status >/dev/null"
                   " && echo x >> d0/s1/f100 && touch new", shell=True, cwd=path, check=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("server")
    ap.add_argument("--port", type=int, default=19760)
    args = ap.parse_args()
    base = tempfile.mkdtemp(prefix="bench-")
    env = dict(os.environ, ABX_SERVER_ENABLED_GROUPS="dev_tools")
    server = subprocess.Popen([args.server, "serve", "--host", "127.0.0.1", "--port", str(args.port), "--pty-port",
                               str(args.port + 1), "--base-dir", base], env=env)
    try:
        c = wait_for(args.port)
        held = sockets(500, 1500)
        print(f"sockets held: {len(held)}")
        for path in ("/health", "/ports", "/system/info", "/system/metrics", "/packages", "/env"):
            first = get(c, path)
            times = [get(c, path) for _ in range(50)]
            print(f"{path:18} first {first:7.2f}  median {statistics.median(times):6.2f}  max {max(times):6.2f}")
        for s in held:
            s.close()
        big_repository(f"{base}/r")
        ours, theirs = [], []
        get(c, f"/git/status?path={base}/r")
        for _ in range(10):
            ours.append(get(c, f"/git/status?path={base}/r"))
            start = time.perf_counter()
            subprocess.run(["git", "status", "--porcelain"], cwd=f"{base}/r", stdout=subprocess.DEVNULL, check=True)
            theirs.append((time.perf_counter() - start) * 1000)
        print(f"20,000 files: /git/status median {statistics.median(ours):.1f}, git status {statistics.median(theirs):.1f}")
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(base)


if __name__ == "__main__":
    main()
