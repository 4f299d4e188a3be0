"""GET /metrics against real events: every family moves when it should, and only then; what is written is what strict
parsers of both formats read."""

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest
from abxconf.server import Server, running
from conftest import PROGRAM, ROOT
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from test_ws_raw import Socket

BUILD = pathlib.Path(os.environ.get("ABX_BUILD", os.path.join(ROOT, "build")))
COMMANDS = os.environ.get("ABX_COMMANDS", str(BUILD / "tests/commands_fixture.so"))
CLASSIC = "text/plain; version=0.0.4; charset=utf-8"
OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"
LIMIT_S = 20


def ask(server, method, path, body=None, **headers):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)) as connection:
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body)
        connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        return answer, answer.read()


class Figures:
    """One scrape. figures("name", label="value") is a sample, 0 when it is not there."""

    def __init__(self, text: str) -> None:
        self.types, self.samples = {}, {}
        for family in text_string_to_metric_families(text):
            assert family.documentation, family.name
            assert family.name not in self.types, f"{family.name} twice"
            self.types[family.name] = family.type
            for s in family.samples:
                key = (s.name, frozenset(s.labels.items()))
                assert key not in self.samples, f"{key} twice"
                self.samples[key] = s.value

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples.get((name, frozenset(labels.items())), 0)

    def labels(self, name: str) -> list[dict]:
        return [dict(labels) for found, labels in self.samples if found == name]

    def sum(self, name: str, **labels: str) -> float:
        return sum(v for (found, has), v in self.samples.items() if found == name and set(labels.items()) <= has)


def figures(server, **headers) -> Figures:
    answer, text = ask(server, "GET", "/metrics", **headers)
    assert answer.status == 200 and answer.headers["Content-Type"] == CLASSIC
    return Figures(text.decode())


def until(server, wanted):
    """Scrapes until wanted(figures) holds: what ends on its own (a connection, a process) is awaited so."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        now = figures(server)
        if wanted(now):
            return now
        assert time.monotonic() < deadline, "it never came to that"


# --- who may read it, and how it is written ---------------------------------------------------------------------

def test_it_wants_a_token_and_the_scope(start, monkeypatch):
    server = start(env={"A": "aa", "B": "bb"}, policy={"auth": {"tokens": [
        {"id": "a", "scopes": ["files:read"], "token_env": "A"}, {"id": "b", "scopes": ["system:read"], "token_env": "B"}]}})
    assert ask(server, "GET", "/metrics")[0].status == 401
    answer, text = ask(server, "GET", "/metrics", X_Access_Token="aa")
    assert answer.status == 403 and json.loads(text)["scope"] == "system:read"
    after = figures(server, X_Access_Token="bb")
    assert after("abx_http_errors_total", type="AuthError", code="unauthorized") == 1
    assert after("abx_http_errors_total", type="PolicyDenied", code="missing_scope") == 1


def test_a_policy_turns_it_off(start):
    server = start(policy={"endpoints": {"metrics": {"enabled": False}}})
    answer, text = ask(server, "GET", "/metrics")
    assert answer.status == 404 and json.loads(text)["code"] == "endpoint_disabled"


def test_a_policy_limits_it(start):
    server = start(policy={"endpoints": {"metrics": {"limits": {"rate_per_minute": 1}}}})
    assert ask(server, "GET", "/metrics")[0].status == 200
    assert ask(server, "GET", "/metrics")[0].status == 429


def test_other_methods_are_refused(server):
    answer, _ = ask(server, "POST", "/metrics", {})
    assert answer.status == 405 and answer.headers["Allow"] == "GET, HEAD, OPTIONS"


def test_head_and_headers(server):
    whole, text = ask(server, "GET", "/metrics")
    head, nothing = ask(server, "HEAD", "/metrics")
    assert (head.status, nothing) == (200, b"")
    for answer in (whole, head):
        assert answer.headers["Content-Type"] == CLASSIC
        assert answer.headers["Cache-Control"] == "no-store"
    assert int(whole.headers["Content-Length"]) == len(text)


def test_openmetrics_when_asked_for(server):
    answer, text = ask(server, "GET", "/metrics", Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert answer.headers["Content-Type"] == OPEN
    families = {f.name: f for f in openmetrics.text_string_to_metric_families(text.decode())}  # strict, up to its # EOF
    classic = figures(server)
    # The classic parser cuts _total from the families of counters, too.
    assert {name: f.type for name, f in families.items()} == classic.types


def test_the_version_is_ours(server):
    version = subprocess.run([PROGRAM, "version"], capture_output=True, text=True, check=True).stdout.strip()
    assert figures(server)("abx_build_info", version=version) == 1


# --- requests ---------------------------------------------------------------------------------------------------

def test_requests_are_counted_by_endpoint_method_and_status(start):
    server = start()
    for _ in range(7):
        ask(server, "GET", "/health")
    ask(server, "HEAD", "/health")
    ask(server, "GET", "/files/stat?path=/etc/passwd")
    ask(server, "GET", "/nowhere/at/all")
    ask(server, "BREW", "/health")
    now = figures(server)
    probes = now("abx_http_requests_total", endpoint="health", method="GET", status="200") - 7
    assert probes >= 1  # those of the start
    assert now("abx_http_requests_total", endpoint="health", method="HEAD", status="200") == 1
    assert now("abx_http_requests_total", endpoint="files_stat", method="GET", status="403") == 1
    assert now("abx_http_requests_total", endpoint="none", method="GET", status="404") == 1
    assert now("abx_http_requests_total", endpoint="none", method="other", status="501") == 1
    assert now("abx_http_errors_total", type="PolicyDenied", code="path_not_allowed") == 1
    assert now("abx_http_errors_total", type="ValueError", code="not_found") == 1
    assert now("abx_http_errors_total", type="ValueError", code="method_not_implemented") == 1
    assert now("abx_http_request_duration_seconds_count", endpoint="health") == probes + 8


def check_histograms(now: Figures) -> None:
    for labels in now.labels("abx_http_request_duration_seconds_count"):
        endpoint = labels["endpoint"]
        buckets = [(float(l["le"]), now("abx_http_request_duration_seconds_bucket", **l))
                   for l in now.labels("abx_http_request_duration_seconds_bucket") if l["endpoint"] == endpoint]
        counts = [count for _, count in sorted(buckets)]
        assert len(counts) == 17 and counts == sorted(counts), endpoint
        total = now("abx_http_request_duration_seconds_count", endpoint=endpoint)
        assert counts[-1] == total == now.sum("abx_http_requests_total", endpoint=endpoint), endpoint


def test_counters_never_go_back_under_load_and_add_up(start):
    server = start()
    each, workers = 60, 6
    failures = []

    def work(number: int) -> None:
        try:
            for i in range(each):
                ask(server, "POST", "/files/mkdir", {"path": f"d{number}-{i}"})
        except Exception as problem:  # noqa: BLE001  told by the main thread
            failures.append(problem)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(workers)]
    for t in threads:
        t.start()
    before, scrapes = figures(server), 0
    while any(t.is_alive() for t in threads):
        now = figures(server)
        scrapes += 1
        for (name, labels), value in before.samples.items():
            if name.endswith(("_total", "_count", "_bucket", "_sum")):
                assert now(name, **dict(labels)) >= value, (name, labels)
        check_histograms(now)
        before = now
    for t in threads:
        t.join()
    assert not failures and scrapes > 0
    now = figures(server)
    assert now("abx_http_requests_total", endpoint="files_mkdir", method="POST", status="200") == each * workers
    assert now("abx_http_request_duration_seconds_count", endpoint="files_mkdir") == each * workers
    assert now("abx_http_request_duration_seconds_sum", endpoint="files_mkdir") > 0
    check_histograms(now)


def test_the_time_is_that_of_the_request(start):
    server = start()
    ask(server, "POST", "/shell", {"command": "sleep 0.3"})
    now = figures(server)
    name = "abx_http_request_duration_seconds"
    assert now(f"{name}_sum", endpoint="shell") >= 0.3
    assert now(f"{name}_bucket", endpoint="shell", le="0.25") == 0
    assert now(f"{name}_bucket", endpoint="shell", le="60.0") == 1


def test_labels_are_bounded(start):
    server = start(commands=COMMANDS)
    for path in ("/x", "/hello-route", "/commands/hello", "/commands/none"):
        ask(server, "POST" if path.startswith("/commands") else "GET", path)
    before = figures(server)
    for i in range(100):
        ask(server, "GET", f"/no-such-{i}")
        ask(server, "POST", f"/commands/none-{i}", {})
        ask(server, "POST", f"/items/kind-{i}/{i}", {})
        ask(server, "GET", f"/process/{i}")
    now = figures(server)
    more = {key for key in now.samples.keys() - before.samples.keys()}
    assert {dict(labels).get("endpoint") for _, labels in more} <= {"custom", "metrics", "process_detail", None}
    assert len(more) < 60  # three endpoints, whatever the number of paths
    assert now.sum("abx_http_requests_total", endpoint="custom") == 101
    assert not any("-7" in value for _, labels in now.samples for value in dict(labels).values())


def test_a_client_that_leaves_is_499(start, connect):
    server = start()
    one = connect(server)
    one.send("POST /files/mkdir HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    until(server, lambda now: now("abx_http_requests_in_flight") == 2)
    one.close()
    now = until(server, lambda now: now("abx_http_requests_in_flight") == 1)
    assert now("abx_http_requests_total", endpoint="files_mkdir", method="POST", status="499") + now(
        "abx_http_requests_total", endpoint="files_mkdir", method="POST", status="400") == 1


# --- connections, streams, bytes ----------------------------------------------------------------------------------

def test_connections_and_streams(start, connect):
    server = start()
    idle = connect(server)
    now = until(server, lambda now: now("abx_http_connections") == 2)
    accepted = now("abx_http_connections_accepted_total")
    watching = connect(server)
    watching.send("GET /files/watch?path=. HTTP/1.1\r\nHost: x\r\n\r\n")
    watching.read_until(b"event: ready")
    now = figures(server)
    assert now("abx_http_event_streams") == 1
    assert now("abx_http_requests_in_flight") == 2  # it and the scrape
    assert now("abx_http_connections") == 3
    assert now("abx_http_connections_accepted_total") > accepted
    assert now("abx_http_request_duration_seconds_count", endpoint="files_watch") == 1  # counted when it was opened
    watching.close()
    idle.close()
    now = until(server, lambda now: now("abx_http_connections") == 1)
    assert now("abx_http_event_streams") == 0 and now("abx_http_requests_in_flight") == 1


def test_a_stream_that_ends_by_itself_is_no_longer_counted(start):
    server = start()
    ask(server, "POST", "/shell/stream", {"command": "echo x"})
    now = figures(server)
    assert now("abx_http_event_streams") == 0 and now("abx_http_requests_in_flight") == 1


def test_connections_without_a_place_are_counted(connect):
    with running(f"prlimit --nofile=64:64 {PROGRAM}") as server:
        busy = []
        while True:
            busy.append(connect(server))
            busy[-1].send("POST /files/mkdir HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n")
            head = busy[-1].read_until(b"\r\n")
            if head != b"HTTP/1.1 100 Continue":
                break
        assert head == b"HTTP/1.1 503 Service Unavailable" and len(busy) > 4
        busy[0].close()
        deadline = time.monotonic() + LIMIT_S
        answer = None
        while not answer or answer.status == 503:  # until the place is free
            assert time.monotonic() < deadline
            answer, text = ask(server, "GET", "/metrics")
        assert Figures(text.decode())("abx_http_connections_refused_total") >= 1


def test_bytes_of_wire_and_files(start):
    server = start()
    data = os.urandom(700_000)
    before = figures(server)
    ask(server, "PUT", "/none", b"x")
    ask(server, "POST", "/upload?path=a.bin", data)
    now = figures(server)
    assert now("abx_file_written_bytes_total") == len(data)
    assert len(data) < now("abx_http_received_bytes_total") - before("abx_http_received_bytes_total") < len(data) + 4096
    before = now
    assert ask(server, "GET", "/download?path=a.bin")[1] == data
    now = figures(server)
    assert now("abx_file_read_bytes_total") == len(data)
    assert len(data) < now("abx_http_sent_bytes_total") - before("abx_http_sent_bytes_total") < len(data) + 65536
    ask(server, "POST", "/files/upload-stream", {"path": "b.bin", "content_base64": "aGVsbG8="})
    ask(server, "GET", "/files/download-stream?path=b.bin")
    ask(server, "GET", "/files/download-stream?path=a.bin")
    now = figures(server)
    assert now("abx_file_written_bytes_total") == len(data) + 5
    assert now("abx_file_read_bytes_total") == 2 * len(data) + 5
    refused = ask(server, "POST", "/upload?path=/etc/a.bin", data)[0].status
    assert refused == 403 and figures(server)("abx_file_written_bytes_total") == len(data) + 5


def test_an_unpacked_archive_is_written(start):
    server = start()
    ask(server, "POST", "/upload", {"path": "d/a", "content": "12345"})
    _, archive = ask(server, "POST", "/files/archive", {"paths": ["d"]}, Accept="application/gzip")
    before = figures(server)("abx_file_written_bytes_total")
    ask(server, "POST", "/files/extract?path=copy", archive, Content_Type="application/gzip")
    assert figures(server)("abx_file_written_bytes_total") == before + 5


def test_refusals_by_rate(start):
    server = start(policy={"endpoints": {"env_get": {"limits": {"rate_per_minute": 1}}}})
    for _ in range(3):
        ask(server, "GET", "/env")
    assert figures(server)("abx_http_errors_total", type="RateLimited", code="rate_limited") == 2


# --- programs, terminals, commands ---------------------------------------------------------------------------------

def test_programs(start, connect):
    server = start()
    for command in ("true", "true", "false", "sh -c 'kill -9 $$'"):
        ask(server, "POST", "/shell", {"command": command})
    now = figures(server)
    assert now("abx_processes_started_total") == 4 and now("abx_processes_running") == 0
    ended = {o: now("abx_processes_ended_total", outcome=o) for o in ("success", "failure", "signal")}
    assert ended == {"success": 2, "failure": 1, "signal": 1}
    assert now("abx_processes_killed_total", reason="timeout") == now("abx_processes_killed_total", reason="cancelled") == 0

    assert ask(server, "POST", "/shell", {"command": "/bin/true/no"})[0].status == 500
    ask(server, "POST", "/shell", {"command": "sleep 60", "timeout_ms": 50})
    now = figures(server)
    assert now("abx_processes_killed_total", reason="timeout") == 1
    assert now("abx_processes_ended_total", outcome="signal") == 2

    leaving = connect(server)
    body = json.dumps({"command": "sleep 60"})
    leaving.send(f"POST /shell/stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}")
    until(server, lambda now: now("abx_processes_running") == 1)
    leaving.close()
    now = until(server, lambda now: now("abx_processes_running") == 0)
    assert now("abx_processes_killed_total", reason="cancelled") == 1
    assert now("abx_processes_ended_total", outcome="signal") == 3


def test_a_program_that_can_not_be_started(start):
    server = start()
    path = os.path.join(server.base, "text")
    pathlib.Path(path).write_bytes(b"\x7fELFnonsense")
    os.chmod(path, 0o755)
    assert ask(server, "POST", "/shell", {"command": path})[0].status == 500
    now = figures(server)
    assert now("abx_processes_start_failures_total") == 1 and now("abx_processes_started_total") == 0


def test_terminals(start):
    server = start()
    _, text = ask(server, "POST", "/pty/sessions", {"shell": "/bin/sh"})
    session = json.loads(text)["session_id"]
    now = figures(server)
    assert now("abx_pty_sessions") == now("abx_pty_sessions_created_total") == 1
    assert now("abx_pty_clients") == now("abx_http_websockets") == 0
    one = Socket(server, session)
    one.frame()  # started
    now = figures(server)
    assert now("abx_pty_clients") == now("abx_http_websockets") == 1
    assert now("abx_http_requests_total", endpoint="pty_connect", method="GET", status="101") == 1
    one.socket.close()
    until(server, lambda now: now("abx_pty_clients") == now("abx_http_websockets") == 0)
    ask(server, "DELETE", f"/pty/sessions/{session}")
    now = figures(server)
    assert now("abx_pty_sessions") == 0 and now("abx_pty_sessions_created_total") == 1


def test_a_refusal_after_the_handshake_is_an_error(start):
    server = start(env={"ABX_SERVER_TOKEN": "secret"})
    one = Socket(server, "x")
    assert one.close_code() == 4001
    now = figures(server, X_Access_Token="secret")
    assert now("abx_http_errors_total", type="AuthError", code="unauthorized") == 1


def children(pid: int, name: str) -> list[int]:
    found = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    tasks = [int(p) for t in pathlib.Path(f"/proc/{pid}/task").iterdir() for p in (t / "children").read_text().split()]
    return [p for p in {*map(int, found), *tasks} if name in pathlib.Path(f"/proc/{p}/cmdline").read_text()]


def test_command_hosts(start):
    server = start(commands=os.path.join(ROOT, "tests/faults/commands_faults.c"))
    assert ask(server, "POST", "/commands/hello", {})[0].status == 200
    now = figures(server)
    assert now("abx_command_hosts") == 1
    assert now("abx_command_host_restarts_total", reason="crash") == 0
    (host,) = children(server.process.pid, "command-host")
    os.kill(host, signal.SIGKILL)
    until(server, lambda now: now("abx_command_host_restarts_total", reason="crash") == 1 and now("abx_command_hosts") == 1)
    for _ in range(8):
        assert ask(server, "POST", "/commands/hangs", {})[0].status == 500
    now = until(server, lambda now: now("abx_command_host_restarts_total", reason="replaced") == 1)
    assert now("abx_command_host_restarts_total", reason="crash") == 1


# --- agents, browser, log, the process itself ------------------------------------------------------------------------

def test_agents(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    shutil.copy(os.path.join(ROOT, "tests/agents/fake-codex"), tools / "codex")
    env = {"ABX_SERVER_ENABLED_GROUPS": "agents", "PATH": f"{tools}:{os.environ['PATH']}"}
    with running(PROGRAM, env=env) as server:
        def turn(text):
            answer, body = ask(server, "POST", "/v1/agents/sessions", {"agent": {"model": "gpt-5-codex"}, "input": text})
            assert answer.status in (200, 201), body
            return json.loads(body)["id"]

        done = turn("say: hi")
        until(server, lambda now: now("abx_agent_turns_total", status="completed") == 1)
        turn("fail: no")
        until(server, lambda now: now("abx_agent_turns_total", status="failed") == 1)
        hanging = turn("hang:")
        now = until(server, lambda now: now("abx_agent_turns_running") == 1)
        assert now("abx_agent_sessions") == 3
        ask(server, "POST", f"/v1/agents/sessions/{hanging}/events", {"events": [{"type": "agent.session.input.cancel"}]})
        now = until(server, lambda now: now("abx_agent_turns_total", status="cancelled") == 1)
        assert now("abx_agent_turns_running") == 0
        assert ask(server, "DELETE", f"/v1/agents/sessions/{done}")[0].status == 200
        assert figures(server)("abx_agent_sessions") == 2


@pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium is installed")
def test_browser(start):
    server = start(env={"ABX_SERVER_ENABLED_GROUPS": "browser"})
    assert figures(server)("abx_browser_running") == 0
    answer, text = ask(server, "POST", "/browser/evaluate", {"script": "1+1"})
    assert answer.status == 200, text
    now = figures(server)
    assert (now("abx_browser_running"), now("abx_browser_starts_total"), now("abx_browser_crashes_total")) == (1, 1, 0)
    for pid in children(server.process.pid, "--remote-debugging-pipe"):
        os.kill(pid, signal.SIGKILL)
    now = until(server, lambda now: now("abx_browser_crashes_total") == 1)
    assert now("abx_browser_running") == 0


def test_lines_that_nobody_reads_are_counted(tmp_path):
    server = Server(PROGRAM, str(tmp_path), policy={"defaults": {"audit": "all"}})
    os.mkfifo(server.log_path)
    reader = os.open(server.log_path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        server.start()
        assert figures(server)("abx_log_lines_dropped_total") == 0
    finally:
        os.close(reader)
    try:
        now = until(server, lambda now: now("abx_log_lines_dropped_total") >= 3)
        assert now("abx_log_lines_dropped_total") <= now.sum("abx_http_requests_total")
    finally:
        server.stop()


def test_the_process_itself(start, connect):
    began = time.time()
    server = start()
    now = figures(server)
    assert began - 2 < now("process_start_time_seconds") < time.time() + 2
    status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{server.process.pid}/status").read_text().splitlines())
    assert abs(now("process_resident_memory_bytes") - int(status["VmRSS"].split()[0]) * 1024) < 4 << 20
    assert now("process_virtual_memory_bytes") > now("process_resident_memory_bytes")
    assert now("process_threads") == int(status["Threads"])
    limits = pathlib.Path(f"/proc/{server.process.pid}/limits").read_text()
    (files,) = [line.split() for line in limits.splitlines() if line.startswith("Max open files")]
    assert now("process_max_fds") == int(files[3])
    before = figures(server)
    held = [connect(server) for _ in range(5)]
    assert len(held) == 5
    until(server, lambda now: now("process_open_fds") == before("process_open_fds") + 5)
    burnt = before("process_cpu_seconds_total")
    now = until(server, lambda now: now("process_cpu_seconds_total") >= burnt + 0.02)
    assert now("process_cpu_seconds_total") < 60


def test_the_doc_names_every_family(start):
    page = pathlib.Path(ROOT, "docs/metrics.md").read_text(encoding="utf-8")
    server = start()
    for name, kind in figures(server).types.items():
        shown = name + "_total" if kind == "counter" else name
        assert f"`{shown}`" in page, shown
