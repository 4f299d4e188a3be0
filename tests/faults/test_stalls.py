"""What a server does while something below it stalls for longer than anybody waits. Server binary: ABX_SERVER; build
folder with tests/stalls.so: ABX_BUILD; ports: ABX_CONF_PORTS."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import select
import signal
import time

import pytest

from test_process import BINARY, SANITIZED, Server

STALLS = pathlib.Path(os.environ.get("ABX_BUILD", pathlib.Path(BINARY).parents[1])) / "tests" / "stalls.so"

pytestmark = pytest.mark.skipif(SANITIZED, reason="a sanitizer's runtime must be loaded first")


ASK = [
    ("POST", "/shell", {"command": "true", "cwd": "{dir}"}),
    ("POST", "/shell", {"command": "{dir}/program"}),
    ("POST", "/shell", {"command": "program", "env": {"PATH": "{dir}"}}),
    ("POST", "/shell/stream", {"command": "true", "cwd": "{dir}"}),
    ("POST", "/process/start", {"command": "true", "cwd": "{dir}"}),
    ("POST", "/code/run", {"code": "1", "cwd": "{dir}"}),
    ("POST", "/code/run", {"code": "1", "env": {"PATH": "{dir}"}}),
    ("POST", "/commands/runshell", {"cmd": "{dir}/program"}),
    ("POST", "/commands/upload", {"path": "{dir}/x", "content": ""}),
    ("POST", "/commands/download", {"path": "{dir}/x"}),
    ("POST", "/pty/sessions", {"shell": "{dir}/sh"}),
    ("GET", "/files/list?path={dir}", None),
    ("GET", "/files/stat?path={dir}/x", None),
    ("POST", "/files/mkdir", {"path": "{dir}/x"}),
    ("DELETE", "/files?path={dir}/x", None),
    ("POST", "/files/move", {"source": "{dir}/x", "destination": "{dir}/y"}),
    ("POST", "/files/search", {"path": "{dir}", "pattern": "x"}),
    ("POST", "/files/upload-stream?path={dir}/x", "x"),
    ("GET", "/files/download-stream?path={dir}/x", None),
    ("POST", "/files/archive", {"paths": ["{dir}"]}),
    ("GET", "/files/watch?path={dir}", None),
    ("POST", "/files/extract?path={dir}", "x"),
    ("POST", "/upload", {"path": "{dir}/x", "content": ""}),
    ("GET", "/download?path={dir}/x", None),
    ("GET", "/git/status?path={dir}", None),
    ("GET", "/git/diff?path={dir}", None),
    ("POST", "/v1/agents/sessions", {"environment": {"workspace_directory": "{dir}"}}),
]


def fill(value, directory):
    if isinstance(value, str):
        return value.replace("{dir}", directory)
    if isinstance(value, list):
        return [fill(v, directory) for v in value]
    return {k: fill(v, directory) for k, v in value.items()} if isinstance(value, dict) else value


def test_a_file_system_that_hangs_stalls_only_those_who_ask_for_it(tmp_path):
    directory = str(tmp_path / "net.stalled")
    os.mkdir(directory)
    server = Server(tmp_path, env={"LD_PRELOAD": str(STALLS), "UV_THREADPOOL_SIZE": "64", "HOME": str(tmp_path),
                                   "ABX_SERVER_ENABLED_GROUPS": "agents,dev_tools", "ABX_STATE_DIR": str(tmp_path / "s")})
    asked, stalled = [], []
    try:
        for method, path, body in ASK:
            c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
            body = fill(body, directory)
            raw = {"Content-Type": "application/octet-stream"} if body == "x" else {}
            c.request(method, fill(path, directory), json.dumps(body) if isinstance(body, dict) else body, raw)
            asked.append(c)
            start = time.monotonic()
            try:
                assert server.get("/health", timeout=5)[0] == 200
            except TimeoutError:
                stalled.append(f"{method} {path} {body}")
                break
            assert time.monotonic() - start < 5
        assert not stalled
        # The others wait: the question was one. A shell has looked in runshell's case, and /pty has a list of its own.
        answered = [(m, p, b) for (m, p, b), c in zip(ASK, asked) if select.select([c.sock], [], [], 0)[0]]
        assert all(p in ("/commands/runshell", "/pty/sessions") for _, p, _ in answered), answered
    finally:
        for c in asked:
            c.close()
        server.process.kill()
        server.process.wait()


def test_the_stop_does_not_wait_for_a_disk_that_stalls(tmp_path):
    server = Server(tmp_path, env={"LD_PRELOAD": str(STALLS), "STALL_SYNC_MS": "60000", "STALL_SYNC_WHILE": "/"})
    try:
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        c.request("POST", "/files/upload-stream?path=a&fsync=true", b"x", {"Content-Type": "application/octet-stream"})
        wait_for_sync(server.pid)
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        assert time.monotonic() - start < 20  # 5 on a machine that has time; the disk takes a minute
        c.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGKILL)
    assert (tmp_path / "a").exists() is False


def wait_for_sync(pid):
    """Until a worker sleeps in it (in the system call that sleep() makes)."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                if (task / "syscall").read_text().split()[0] in ("35", "230", "101", "115"):  # (clock_)nanosleep
                    return
        time.sleep(0.01)
    raise AssertionError("no upload has come to its fsync")


def test_a_webhook_whose_name_nobody_resolves_stalls_nothing_else(tmp_path):
    server = Server(tmp_path, env={"LD_PRELOAD": str(STALLS), "ABX_SERVER_ENABLED_GROUPS": "agents",
                                   "HOME": str(tmp_path), "ABX_STATE_DIR": str(tmp_path / "state")})
    try:
        event = "agent.session.created"
        status, made = server.post("/v1/webhook_endpoints", {"url": "https://a.stalled/", "event_types": [event]})
        assert status in (200, 201), made
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            test = pool.submit(server.post, f"/v1/webhook_endpoints/{made['id']}/test", {"event_type": event})
            while not test.done():  # an attempt is given up after five seconds
                start = time.monotonic()
                assert server.get("/health", timeout=20)[0] == 200
                assert time.monotonic() - start < 5
            assert test.result()[0] >= 400, test.result()
        status, made = server.post("/v1/agents/sessions", {"environment": {"workspace_directory": str(tmp_path)}})
        assert status in (200, 201), made
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        assert time.monotonic() - start < 20
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGKILL)


def test_what_an_agent_wrote_before_its_end_is_kept_by_a_slow_disk(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    codex = folder / "codex"
    codex.write_text("""#!/usr/bin/env python3
import json, sys
sys.stdin.read()
w = lambda o: sys.stdout.write(json.dumps(o) + "\\n")
w({"type": "thread.started", "thread_id": "t"})
for i in range(3400):
    w({"type": "item.completed", "item": {"type": "agent_message", "text": "n%d " % i + "y" * 500}})
w({"type": "turn.completed", "usage": {"input_tokens": 1, "output_tokens": 1}})
""")
    codex.chmod(0o755)
    server = Server(tmp_path, env={"LD_PRELOAD": str(STALLS), "STALL_SYNC_MS": "1500", "STALL_SYNC_WHILE": str(tmp_path / "slow"),
                                   "ABX_SERVER_ENABLED_GROUPS": "agents",
                                   "HOME": str(tmp_path), "ABX_STATE_DIR": str(tmp_path / "state"),
                                   "PATH": f"{folder}:{os.environ['PATH']}"})
    try:
        status, session = server.post("/v1/agents/sessions", {"environment": {"workspace_directory": str(tmp_path)}})
        assert status in (200, 201), session
        (tmp_path / "slow").touch()
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        c.request("POST", f"/v1/agents/sessions/{session['id']}/events", json.dumps({"input": "go"}))
        assert c.getresponse().status == 202
        c.close()
        end = time.monotonic() + 60
        while True:
            turns = server.get(f"/v1/agents/sessions/{session['id']}/turns")[1]["data"]
            if turns and turns[0]["status"] not in ("queued", "in_progress", "running"):
                break
            assert time.monotonic() < end, turns
            time.sleep(0.05)
        assert turns[0]["status"] == "completed", turns[0].get("error")
    finally:
        (tmp_path / "slow").unlink()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(30)
