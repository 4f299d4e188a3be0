"""A server that has no descriptor left says so: 503 `overloaded`, to be tried again, never that a file, a port or a machine's
memory isn't there; and nothing of it stays when there are some again. Server binary: ABX_SERVER (default
build/server/abx-server); free ports are taken from ABX_CONF_PORTS (lo-hi). Bounded: a few seconds."""

import http.client
import json
import os
import resource
import subprocess

import pytest
from test_process import Server

# What can't be done without a descriptor.
NEED = [
    ("GET", "/files/list?path=.", None),
    ("GET", "/files/list?path=.&recursive=true", None),
    ("GET", "/files/stat?path=a.txt", None),
    ("GET", "/files/download-stream?path=a.txt", None),
    ("GET", "/download?path=a.txt", None),
    ("POST", "/upload", {"path": "up.txt", "content": "YQ=="}),
    ("POST", "/files/mkdir", {"path": "made/here"}),
    ("POST", "/files/move", {"source": "to-move", "destination": "moved"}),
    ("POST", "/files/search", {"path": ".", "pattern": "*"}),
    ("POST", "/files/archive", {"paths": ["a.txt"]}),
    ("DELETE", "/files?path=to-delete", None),
    ("POST", "/shell", {"command": "true"}),
    ("POST", "/shell", {"command": "true", "cwd": "made"}),
    ("POST", "/shell", {"command": "cat", "input": "x", "merge_stderr": True}),
    ("POST", "/shell/stream", {"command": "true"}),
    ("POST", "/process/start", {"command": "true"}),
    ("POST", "/code/run", {"code": "1", "language": "python"}),
    ("POST", "/pty/sessions", {}),
    ("GET", "/system/info", None),
    ("GET", "/system/metrics", None),
    ("GET", "/ports", None),
    ("GET", "/packages", None),
    ("GET", "/git/status?path=.", None),
    ("GET", "/git/diff?path=.", None),
    ("GET", "/v1/agents/sessions", None),
    ("GET", "/v1/agents/runtimes", None),
]
# What can.
NEED_NONE = ["/health", "/capabilities", "/commands", "/process/list", "/pty/sessions", "/env", "/metrics"]


class Connection:
    """One that is kept: a new one would need a descriptor."""

    def __init__(self, server):
        self.server = server
        self.http = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        self.soft, self.hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)

    def call(self, method, path, body):
        self.http.request(method, path, None if body is None else json.dumps(body))
        answer = self.http.getresponse()
        return answer.status, answer.read(), answer

    def descriptors(self, some):
        resource.prlimit(self.server.pid, resource.RLIMIT_NOFILE, (self.soft if some else 3, self.hard))


@pytest.fixture
def connection(tmp_path):
    base = tmp_path / "base"
    (base / "made").mkdir(parents=True)
    for name in ("a.txt", "to-move", "to-delete"):
        (base / name).write_text("some\n")
    subprocess.run(["git", "init", "-q", str(base)], check=True)
    state = tmp_path / "state"
    state.mkdir()
    groups = "core,commands,file_ops,process,terminal,system,dev_tools,browser,agents"
    server = Server(base, env={"ABX_SERVER_ENABLED_GROUPS": groups, "ABX_STATE_DIR": str(state)})
    yield Connection(server)
    server.stop()


@pytest.mark.parametrize("warm", [False, True], ids=["at once", "after work"])
def test_a_want_of_descriptors_is_told_and_passes(connection, warm):
    if warm:  # modules are loaded, caches filled, cgroups kept
        for method, path, body in NEED:
            if method == "GET" or path == "/shell":
                assert connection.call(method, path, body)[0] == 200, path
    else:
        assert connection.call("GET", "/health", None)[0] == 200
    connection.descriptors(False)
    wrong = []
    for method, path, body in NEED:
        status, text, answer = connection.call(method, path, body)
        if warm and status == 200 and path in ("/system/metrics", "/v1/agents/sessions", "/v1/agents/runtimes"):
            continue  # known already
        told = json.loads(text) if status >= 400 else {}
        if status != 503 or told.get("code") != "overloaded" or answer.headers["Retry-After"] != "1":
            wrong.append((method, path, body, status, text[:200]))
    assert wrong == []
    for path in NEED_NONE:
        assert connection.call("GET", path, None)[0] == 200, path
    connection.descriptors(True)
    for method, path, body in NEED:
        status, text, _ = connection.call(method, path, body)
        assert status in (200, 201), (method, path, text)


def test_a_walk_that_runs_out_says_so(connection):
    """Some are left, but not for a whole tree: what lies deeper must not look as if it weren't there."""
    base = connection.server.base
    deep = os.path.join(base, *["deeper"] * 2)
    os.makedirs(deep)
    with open(os.path.join(deep, "needle.txt"), "w", encoding="utf-8") as f:
        f.write("needle\n")
    for method, path, body in [("GET", "/files/list?path=.&recursive=true", None),
                               ("POST", "/files/search", {"path": ".", "pattern": "needle*"}),
                               ("POST", "/files/search", {"path": ".", "content": "needle", "pattern": "*"})]:
        assert b"needle.txt" in connection.call(method, path, body)[1], path
        opened = connection.server.fds()
        refused = 0
        for room in range(1, 16):
            resource.prlimit(connection.server.pid, resource.RLIMIT_NOFILE, (opened + room, connection.hard))
            status, text, _ = connection.call(method, path, body)
            refused += status == 503
            assert status == 503 or (status == 200 and b"needle.txt" in text), (path, room, text[:300])
        connection.descriptors(True)
        assert refused > 0, path
