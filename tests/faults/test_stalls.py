"""What a server does while something below it stalls for longer than anybody waits. Server binary: ABX_SERVER; build
folder with tests/stalls.so: ABX_BUILD; ports: ABX_CONF_PORTS."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import signal
import time

import pytest

from test_process import BINARY, SANITIZED, Server

STALLS = pathlib.Path(os.environ.get("ABX_BUILD", pathlib.Path(BINARY).parents[1])) / "tests" / "stalls.so"

pytestmark = pytest.mark.skipif(SANITIZED, reason="a sanitizer's runtime must be loaded first")


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
