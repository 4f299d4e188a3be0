"""What goes wrong with programs, and what must hold all the same. Server binary: ABX_SERVER (default
build/server/abx-server); free ports are taken from ABX_CONF_PORTS (lo-hi). Bounded: a few minutes.
SOAK=1 runs the long counts (50,000 short processes and so on)."""

import base64
import concurrent.futures
import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import threading
import time

import pytest

BINARY = os.path.abspath(os.environ.get("ABX_SERVER", "build/server/abx-server"))
LOW, HIGH = (int(n) for n in os.environ.get("ABX_CONF_PORTS", "19950-19990").split("-"))
LONG = os.environ.get("SOAK") == "1"
SANITIZED = os.environ.get("ABX_SANITIZED") == "1"  # freed memory is kept for a while: no memory bounds


def free_port(skip=0):
    for port in range(LOW, HIGH):
        if port == skip:
            continue
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                s.bind(("127.0.0.1", port))
                return port
    raise RuntimeError("no free port")


class Server:
    def __init__(self, base, prefix=(), env=None):
        self.port = free_port()
        terminals = free_port(self.port)
        self.base = str(base)
        self.process = subprocess.Popen(
            [*prefix, BINARY, "serve", "--port", str(self.port), "--pty-port", str(terminals), "--base-dir", self.base],
            env={**os.environ, **(env or {})}, stderr=subprocess.DEVNULL, cwd=self.base)
        for _ in range(150):
            with contextlib.suppress(OSError):
                if self.get("/health")[0] == 200:
                    break
            time.sleep(0.02)
        else:
            raise RuntimeError("no answer")
        self.pid = self.process.pid
        if prefix:
            child = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
            self.pid = int(open(child).read().split()[0])

    def call(self, method, path, body=None, timeout=30, headers=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            c.request(method, path, json.dumps(body) if body is not None else None, headers or {})
            r = c.getresponse()
            return r.status, json.loads(r.read())
        finally:
            c.close()

    def get(self, path, **more):
        return self.call("GET", path, **more)

    def post(self, path, body, **more):
        return self.call("POST", path, body, **more)

    def shell(self, command, **more):
        return self.post("/shell", {"command": command, **more})

    def stream(self, command, **more):
        """All events of one stream, as (name, data)."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request("POST", "/shell/stream", json.dumps({"command": command, **more}))
        r = c.getresponse()
        assert r.status == 200
        text = r.read().decode()
        c.close()
        return events(text)

    def fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def threads(self):
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def memory(self, field="VmRSS"):
        for line in open(f"/proc/{self.pid}/status"):
            if line.startswith(field):
                return int(line.split()[1]) * 1024

    def children(self):
        found = []
        for task in os.listdir(f"/proc/{self.pid}/task"):
            found += open(f"/proc/{self.pid}/task/{task}/children").read().split()
        return found

    def settle(self, what, limit=10):
        """Waits until what() is true."""
        end = time.monotonic() + limit
        while not what():
            assert time.monotonic() < end, "did not settle"
            time.sleep(0.02)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)

    close = stop


def events(text):
    out = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            fields = dict(line.split(": ", 1) for line in lines)
            out.append((fields["event"], json.loads(fields["data"])))
    return out


def joined(got, name):
    """Text of one stream: events are lines, but for the pieces of a long one."""
    text = ""
    for kind, data in got:
        if kind == name:
            text += data["data"] + ("" if data.get("partial") else "\n")
    return text


def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pid, within=4):
    end = time.monotonic() + within
    while alive(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def server(tmp_path):
    s = Server(tmp_path)
    yield s
    if s.process.poll() is None:
        assert s.stop() == 0


# --- output ------------------------------------------------------------------------------------------


def test_short_output_is_always_whole(server):
    for _ in range(100):
        status, got = server.shell("seq 1 20000")
        assert status == 200 and len(got["stdout"]) == 108894
    for _ in range(100):
        got = server.stream("bash -c 'printf first; printf last >&2'")
        assert sorted(got[:-1]) == [("stderr", {"data": "last"}), ("stdout", {"data": "first"})]
        assert got[-1] == ("exit", {"exit_code": 0})


@pytest.mark.parametrize("how", ["shell", "stream"])
def test_background_child_never_holds_the_answer(server, how):
    command = "bash -c 'echo started; sleep 60 & exit 0'"
    before = time.monotonic()
    if how == "shell":
        status, got = server.shell(command)
        assert (status, got) == (200, {"stdout": "started\n", "stderr": "", "exit_code": 0})
    else:
        assert server.stream(command) == [("stdout", {"data": "started"}), ("exit", {"exit_code": 0})]
    assert time.monotonic() - before < 2


def test_timeout_ends_the_tree_and_keeps_the_output(server, tmp_path):
    before = time.monotonic()
    status, got = server.shell("bash -c 'echo so far; sleep 301 & echo $! > pid; sleep 302; echo never'",
                               timeout=0.5)
    assert status == 500 and got["type"] == "TimeoutError"
    assert got["stdout"] == "so far\n" and got["truncated"] is False
    assert time.monotonic() - before < 2.5
    assert gone(int((tmp_path / "pid").read_text()))
    assert server.shell("echo ok")[1]["stdout"] == "ok\n"


def test_timeout_of_those_who_ignore_term(server):
    before = time.monotonic()
    got = server.stream("bash -c 'trap \"\" TERM INT; while :; do sleep 1; done'", timeout=0.5)
    assert got == [("error", {"error": "timeout"}), ("exit", {"exit_code": -9})]
    assert time.monotonic() - before < 3
    server.settle(lambda: not server.children())


def test_stderr_first_and_much(server):
    command = "bash -c 'head -c 300000 /dev/zero | tr \"\\0\" e >&2; echo done'"
    status, got = server.shell(command)
    assert status == 200 and len(got["stderr"]) == 300000 and got["stdout"] == "done\n"
    got = server.stream(command)
    assert len(joined(got, "stderr").rstrip("\n")) == 300000 and joined(got, "stdout") == "done\n"


def test_stdin_is_at_its_end(server):
    assert server.shell("cat")[1] == {"stdout": "", "stderr": "", "exit_code": 0}
    assert server.shell("bash -c 'read x; echo rc=$?'")[1]["stdout"] == "rc=1\n"
    assert server.shell("cat", input="given")[1]["stdout"] == "given"
    big = base64.b64encode(bytes(300000)).decode()
    assert server.shell("wc -c", input_base64=big)[1]["stdout"] == "300000\n"
    assert server.shell("true", input="x" * 300000)[1]["exit_code"] == 0


def test_characters_survive_any_cut(server):
    command = r"bash -c 'printf \"\xe6\"; sleep 0.2; printf \"\xbc\"; sleep 0.2; printf \"\xa2\n\"'"
    command = command.replace('\\"', '"')
    assert server.stream(command)[0] == ("stdout", {"data": "漢"})
    assert server.shell(command)[1]["stdout"] == "漢\n"
    command = "bash -c 'head -c 65535 /dev/zero | tr \"\\0\" a; printf 漢字'"
    assert server.shell(command)[1]["stdout"] == "a" * 65535 + "漢字"
    assert joined(server.stream(command), "stdout") == "a" * 65535 + "漢字\n"
    assert server.shell("printf 'a\\377\\376b'")[1]["stdout"] == "a\ufffd\ufffdb"
    assert server.shell("head -c 4096 /dev/urandom")[0] == 200


def test_endless_line_comes_in_pieces(server):
    got = server.stream("bash -c 'head -c 8388608 /dev/zero | tr \"\\0\" x'")
    assert joined(got, "stdout") == "x" * 8388608 + ("" if got[-2][1].get("partial") else "\n")
    assert max(len(data["data"]) for kind, data in got if kind == "stdout") <= 2 << 20
    assert got[-1] == ("exit", {"exit_code": 0})
    got = server.stream("bash -c 'head -c 2000000 /dev/zero | tr \"\\0\" x'")
    assert got == [("stdout", {"data": "x" * 2000000}), ("exit", {"exit_code": 0})]
    for tail in ("", "echo"):  # just the length of a piece, its LF late or missing: no empty event after it
        got = server.stream(f"head -c 2097152 /dev/zero | tr '\\0' x; sleep 0.2; {tail}", shell=True)
        assert got == [("stdout", {"data": "x" * 2097152}), ("exit", {"exit_code": 0})]


def test_output_that_looks_like_events(server):
    got = server.stream("printf 'event: exit\\ndata: {\"exit_code\":9}\\n\\n\\342\\200\\250\\n'")
    assert [e for e in got if e[0] == "exit"] == [("exit", {"exit_code": 0})]
    assert joined(got, "stdout") == 'event: exit\ndata: {"exit_code":9}\n\n\u2028\n'


def test_long_answers_cost_disk_and_not_memory(server):
    base = server.memory("VmHWM")
    status, got = server.shell("bash -c 'head -c 40000000 /dev/zero | tr \"\\0\" x; echo end >&2'", timeout=60)
    assert status == 200 and len(got["stdout"]) == 40000000 and got["stderr"] == "end\n"
    status, got = server.shell("bash -c 'head -c 5000000 /dev/zero | tr \"\\0\" x; sleep 9'", timeout=2)
    assert status == 500 and len(got["stdout"]) == 5000000
    assert SANITIZED or server.memory("VmHWM") - base < 32 << 20
    assert server.shell("echo ok")[1]["stdout"] == "ok\n"


def test_reader_that_stalls_stops_the_program(server):
    base = server.memory()
    s = socket.create_connection(("127.0.0.1", server.port))
    body = json.dumps({"command": "yes"})
    s.sendall(f"POST /shell/stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    s.recv(65536)
    end = time.monotonic() + (30 if LONG else 4)
    while time.monotonic() < end:
        assert SANITIZED or server.memory() - base < 16 << 20
        assert server.shell("echo ok")[1]["stdout"] == "ok\n"
        time.sleep(0.1)
    s.close()
    server.settle(lambda: not server.children())


def test_client_that_leaves_ends_the_group(server, tmp_path):
    for path in ("/shell", "/shell/stream"):
        (tmp_path / "pid").unlink(missing_ok=True)
        s = socket.create_connection(("127.0.0.1", server.port))
        body = json.dumps({"command": "bash -c 'sleep 300 & echo $! > pid; while :; do sleep 1; done'"})
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        server.settle(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
        s.close()
        assert gone(int((tmp_path / "pid").read_text()), 5)
    server.settle(lambda: not server.children())


# --- requests ---------------------------------------------------------------------------------------------


def test_mistakes_are_told_at_once(server, tmp_path):
    (tmp_path / "file").write_text("x")
    assert server.shell("no-such-tool --x")[1]["type"] == "FileNotFoundError"
    assert "no-such-tool" in server.shell("no-such-tool --x")[1]["error"]
    assert server.shell("bash -c no-such-tool")[1]["exit_code"] == 127
    assert server.shell("echo 'unclosed")[0] == 400
    for cwd in ("nope", "file"):
        status, got = server.post("/shell/stream", {"command": "pwd", "cwd": f"{tmp_path}/{cwd}"})
        assert status == 400 and got["type"] == "ValueError"
    assert server.shell("x", limits={"memory_bytes": -1})[0] == 400
    assert server.shell("x", user="no-such-user")[0] == 400
    assert server.shell("x", input=5)[0] == 400


def test_own_fields(server):
    assert server.shell("echo $((1+2)) | tr 3 x", shell=True)[1]["stdout"] == "x\n"
    assert server.shell("echo out; echo err >&2", shell=True, merge_stderr=True)[1] == {
        "stdout": "out\nerr\n", "stderr": "", "exit_code": 0}
    assert server.shell("ulimit -n; ulimit -v", shell=True,
                        limits={"open_files": 50, "memory_bytes": 1 << 30})[1]["stdout"] == "50\n1048576\n"
    assert server.shell("sleep 9", timeout_ms=100)[0] == 500
    if os.getuid() == 0:
        assert server.shell("id -u", user="nobody")[1]["stdout"] == "65534\n"
        assert server.shell("id -u", user=4242)[1]["stdout"] == "4242\n"


def test_child_is_clean(server):
    out = server.shell("grep -E 'Sig(Blk|Ign)' /proc/self/status")[1]["stdout"]
    assert {line.split()[1] for line in out.splitlines()} == {"0" * 16}
    out = server.shell("bash -c 'yes | head -n1; echo ${PIPESTATUS[0]}'")[1]
    assert out["stdout"] == "y\n141\n" and out["stderr"] == ""
    soft = server.shell("bash -c 'ulimit -n'")[1]["stdout"].strip()
    assert soft == subprocess.run(["bash", "-c", "ulimit -n"], capture_output=True, text=True).stdout.strip()
    assert server.shell("cat /proc/self/oom_score_adj")[1]["stdout"] == "500\n"


# --- background processes --------------------------------------------------------------------------------------


def start(server, command, **more):
    status, got = server.post("/process/start", {"command": command, **more})
    assert status == 200, got
    return got["pid"]


def wait_exit(server, pid):
    end = time.monotonic() + 10
    while time.monotonic() < end:
        status, got = server.get(f"/process/{pid}")
        assert status == 200
        if got["state"] == "exited":
            return got["exit_code"]
        time.sleep(0.02)
    raise AssertionError("runs on")


def test_pid_is_good_the_moment_it_is_returned(server):
    for _ in range(100):
        pid = start(server, "sleep 5")
        assert server.get(f"/process/{pid}")[0] == 200
        assert server.post(f"/process/{pid}/signal", {"signal": 15})[0] == 200
        assert wait_exit(server, pid) == -15


def test_output_stays_after_the_end(server):
    pid = start(server, "bash -c 'seq 1 2000; echo end >&2'", capture_output=True)
    assert wait_exit(server, pid) == 0
    for _ in range(2):
        got = server.get(f"/process/{pid}/output")[1]
        text = "".join(e["data"] for e in got["events"] if e["stream"] == "stdout")
        assert text == "".join(f"{n}\n" for n in range(1, 2001))
        assert got["exit_code"] == 0 and got["state"] == "exited"
        server.get("/process/list")
    assert server.post(f"/process/{pid}/signal", {"signal": 15})[0] == 404


def test_stdin_nobody_reads(server):
    pid = start(server, "sleep 60", stdin=True)
    before = time.monotonic()
    status, got = server.post(f"/process/{pid}/stdin", {"data": "x" * (1 << 20)})
    assert status == 409 and got["type"] == "ConflictError" and got["written"] == 65536
    assert time.monotonic() - before < 8
    assert server.get("/health")[0] == 200
    server.post(f"/process/{pid}/signal", {"signal": 9})
    assert wait_exit(server, pid) == -9


def test_large_stdin_goes_through(server, tmp_path):
    pid = start(server, "bash -c 'wc -c; exit 3'", stdin=True, capture_output=True)
    status, got = server.post(f"/process/{pid}/stdin", {"data": "x" * (4 << 20), "eof": True})
    assert (status, got) == (200, {"pid": pid, "written": 4 << 20, "closed": True})
    assert wait_exit(server, pid) == 3
    assert server.get(f"/process/{pid}/output")[1]["events"][0]["data"] == f"{4 << 20}\n"


def follow(server, pid, headers=None, stop_after=None):
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    c.request("GET", f"/process/{pid}/output", headers={"Accept": "text/event-stream", **(headers or {})})
    r = c.getresponse()
    assert r.getheader("Content-Type") == "text/event-stream"
    if stop_after:
        got = b""
        while len(got) < stop_after:
            got += r.read1(4096)
        c.sock.close()
        return got.decode()
    text = r.read().decode()
    c.close()
    return text


def test_several_readers_follow_one_process(server):
    pid = start(server, "bash -c 'for i in $(seq 1 1000); do echo $i; sleep 0.002; done'", capture_output=True)
    stalled = socket.create_connection(("127.0.0.1", server.port))
    stalled.sendall(f"GET /process/{pid}/output HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n".encode())
    follow(server, pid, stop_after=2000)
    want = "".join(f"{n}\n" for n in range(1, 1001))
    text = follow(server, pid)
    assert joined_raw(text) == want
    seqs = [data["seq"] for kind, data in parsed(text) if kind == "stdout"]
    assert seqs == list(range(len(seqs)))
    half = follow(server, pid, {"Last-Event-ID": str(seqs[10])})
    assert [d["seq"] for k, d in parsed(half) if k == "stdout"] == seqs[11:]
    assert parsed(half)[-1] == ("exit", {"exit_code": 0})
    stalled.close()


def parsed(text):
    out = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if fields:
            out.append((fields["event"], json.loads(fields["data"])))
    return out


def joined_raw(text):
    return "".join(data["data"] for kind, data in parsed(text) if kind == "stdout")


def test_long_poll_is_woken_by_output_and_end(server):
    pid = start(server, "bash -c 'sleep 0.4; echo now; sleep 0.4; exit 2'", capture_output=True)
    got = server.get(f"/process/{pid}/output?wait=10")[1]
    assert got["events"][0]["data"] == "now\n" and got["state"] == "running"
    before = time.monotonic()
    got = server.get(f"/process/{pid}/output?wait=10&since={got['next']}")[1]
    assert got["events"] == [] and got["exit_code"] == 2 and time.monotonic() - before < 3


def test_a_pid_that_comes_back_is_the_newer_process(tmp_path):
    if os.getuid() != 0:
        pytest.skip("needs a pid namespace")
    s = Server(tmp_path, ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"])
    try:
        pid = start(s, "true")
        assert wait_exit(s, pid) == 0
        s.shell(f"bash -c 'echo {pid - 1} > /proc/sys/kernel/ns_last_pid'")
        for _ in range(50):
            again = start(s, "bash -c 'sleep 0.4; exit 9'")
            if again == pid:
                break
            s.post(f"/process/{again}/signal", {"signal": 9})
            s.shell(f"bash -c 'echo {pid - 1} > /proc/sys/kernel/ns_last_pid'")
        if again != pid:
            pytest.skip("the number did not come back")
        assert s.get(f"/process/{pid}")[1]["exit_code"] is None
        assert wait_exit(s, pid) == 9
    finally:
        s.process.kill()


def test_quiet_processes_cost_no_cpu(server):
    for _ in range(50):
        start(server, "sleep 300")
    stat = f"/proc/{server.pid}/stat"

    def ticks():
        fields = open(stat).read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(5)
    assert ticks() - before <= 5


# --- start and stop ----------------------------------------------------------------------------------------------


def test_stop_ends_everything_properly(server, tmp_path):
    results = []
    threads = [threading.Thread(target=lambda: results.append(server.stream("sleep 300"))) for _ in range(5)]
    for t in threads:
        t.start()
    pid = start(server, "bash -c 'setsid sleep 300 & echo $! > pid; wait'")
    server.settle(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    server.settle(lambda: len(server.children()) == 6)
    before = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - before < 5
    for t in threads:
        t.join(5)
    assert gone(pid) and gone(int((tmp_path / "pid").read_text()))


def test_hard_kill_leaves_no_direct_child(server):
    pid = start(server, "sleep 300")
    server.process.kill()
    server.process.wait()
    assert gone(pid)


def test_as_pid_1(tmp_path):
    if os.getuid() != 0:
        pytest.skip("needs a pid namespace")
    s = Server(tmp_path, ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"])
    try:
        def leaves_an_orphan(n):
            assert s.shell(f"bash -c '(sleep 0.3 &) ; exit {n % 100}'")[1]["exit_code"] == n % 100

        parallel(200, leaves_an_orphan)
        s.settle(lambda: s.shell("pgrep -x sleep")[1]["stdout"] == "")
        assert s.shell("bash -c 'grep -l \"^State:.*Z\" /proc/[0-9]*/status; true'")[1]["stdout"] == ""
        os.kill(s.pid, signal.SIGTERM)
        assert s.process.wait(8) == 0
    finally:
        if s.process.poll() is None:
            s.process.kill()


# --- many ---------------------------------------------------------------------------------------------------------


def parallel(n, work, workers=16):
    """work(i) n times on some threads; the first failure is raised."""
    numbers, failed, lock = iter(range(n)), [], threading.Lock()

    def run():
        while not failed:
            with lock:
                i = next(numbers, None)
            if i is None:
                return
            try:
                work(i)
            except BaseException as e:  # noqa: BLE001 - handed on
                failed.append(e)

    threads = [threading.Thread(target=run) for _ in range(workers)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failed:
        raise failed[0]


def back_to_base(server, fds, threads):
    server.settle(lambda: not server.children() and server.fds() <= fds and server.threads() <= threads)


def test_many_commands_at_once(server):
    n = 1000 if LONG else 300
    parallel(16, lambda i: server.shell("sleep 0.3"))  # all workers, and the few cgroups that are kept open
    server.settle(lambda: not server.children())
    fds, threads = server.fds(), server.threads()
    sockets = []
    body = json.dumps({"command": "sleep 2"})
    head = f"POST /shell HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    for _ in range(n):
        s = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        s.sendall(head.encode())
        sockets.append(s)
    assert server.threads() == threads
    for s in sockets:
        answer = b""
        while piece := s.recv(4096):
            answer += piece
        s.close()
        assert b'"exit_code": 0' in answer
    back_to_base(server, fds, threads)


def test_soak(server):
    short, cancelled, timeouts = (50000, 2000, 500) if LONG else (1500, 150, 30)
    parallel(200, lambda i: server.shell("true"))
    fds, threads = server.fds(), server.threads()
    server.settle(lambda: not server.children())
    base = server.memory()

    def one(i):
        assert server.shell(f"sh -c 'exit {i % 200}'")[1]["exit_code"] == i % 200

    parallel(short, one)

    def cancel(i):
        s = socket.create_connection(("127.0.0.1", server.port))
        body = json.dumps({"command": "bash -c 'sleep 50 & echo x; wait'"})
        s.sendall(f"POST /shell/stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        if i % 2:
            s.recv(1000)
        s.close()

    parallel(cancelled, cancel)

    def late(i):
        status, _ = server.shell("bash -c 'sleep 60 & setsid sleep 61 & wait'", timeout=0.2)
        assert status == 500

    parallel(timeouts, late, workers=8)
    for turn in range(10 if not LONG else 100):
        pids = [start(server, "true") for _ in range(50)]
        for pid in pids:
            assert wait_exit(server, pid) == 0
    back_to_base(server, fds, threads)
    assert SANITIZED or server.memory() - base < 8 << 20


# --- daemons that have detached themselves ----------------------------------------------------------------


def own_cgroup():
    """The cgroup v2 directory that the server will run in, or None where it can't make one of its own."""
    point = next((line.split()[4] for line in open("/proc/self/mountinfo") if " - cgroup2 " in line), None)
    path = next((line[3:].strip() for line in open("/proc/self/cgroup") if line.startswith("0::")), None)
    if not point or not path:
        return None
    own = point + (path if path != "/" else "")
    trial = f"{own}/abx-test-{os.getpid()}"
    try:
        os.mkdir(trial)
    except OSError:
        return None
    there = os.path.exists(f"{trial}/cgroup.kill")
    os.rmdir(trial)
    return own if there else None


OWN = own_cgroup()
needs_cgroup = pytest.mark.skipif(not OWN, reason="no cgroup v2 that can be written to")

# Forks twice, leads a session of its own, ignores TERM; its pid goes to the file named first.
DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for fd in range(3):
            os.close(fd)
        open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        time.sleep(300)
    os._exit(0)
os.wait()
"""


class Detached:
    """A command line that starts the daemon and then does `then`."""

    def __init__(self, directory, then="sleep 60"):
        self.note = f"{directory}/daemon.pid"
        script = f"{directory}/daemon.py"
        open(script, "w").write(DAEMON)
        self.command = f"sh -c 'python3 -I {script} {self.note}; {then}'"

    def pid(self):
        end = time.monotonic() + 10
        while not os.path.exists(self.note):
            assert time.monotonic() < end, "it did not start"
            time.sleep(0.02)
        return int(open(self.note).read())


def program_cgroup(server):
    """Of a program: the end of its name, abx-.../N."""
    name = server.shell("cat /proc/self/cgroup")[1]["stdout"].strip().splitlines()[-1]
    return name[name.index("/abx-"):] if "/abx-" in name else name


@needs_cgroup
@pytest.mark.parametrize("first", [True, False])
def test_a_want_of_descriptors_says_nothing_about_cgroups(tmp_path, first):
    server = Server(tmp_path)
    try:
        if not first:
            assert "/abx-" in program_cgroup(server)
        was = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        c.request("GET", "/health")
        c.getresponse().read()
        top = max(int(fd) for fd in os.listdir(f"/proc/{server.pid}/fd") if int(fd) < 200) + 1
        refused = []
        for limit in range(top, top + 12):  # each step of a start meets it once
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, was[1]))
            c.request("POST", "/shell", json.dumps({"command": "true"}))
            r = c.getresponse()
            body = json.loads(r.read())
            if r.status != 200:
                refused.append((r.status, body.get("code")))
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, was)
        assert refused and set(refused) == {(503, "overloaded")}
        assert "/abx-" in program_cgroup(server)
        c.close()
    finally:
        server.process.kill()


@needs_cgroup
def test_one_that_is_killed_at_birth_is_started_again_in_a_cgroup(server):
    directory = OWN + program_cgroup(server)
    with open(f"{directory}/cgroup.freeze", "w") as f:
        f.write("1")  # whoever is born in there does not come to its first instruction
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked = pool.submit(server.shell, "cat /proc/self/cgroup")
        server.settle(lambda: open(f"{directory}/cgroup.procs").read().strip())
        os.kill(int(open(f"{directory}/cgroup.procs").read()), signal.SIGKILL)
        answer = asked.result()
    assert answer[0] == 200 and "/abx-" in answer[1]["stdout"]
    assert "/abx-" in program_cgroup(server)


@needs_cgroup
def test_detached_daemon_dies_at_the_timeout(server, tmp_path):
    d = Detached(tmp_path)
    assert server.shell(d.command, timeout=3)[0] == 500
    assert gone(d.pid())


@needs_cgroup
def test_detached_daemon_dies_at_the_timeout_of_a_stream(server, tmp_path):
    d = Detached(tmp_path)
    got = server.stream(d.command, timeout=3)
    assert got[-1] == ("exit", {"exit_code": -9})
    assert gone(d.pid())


@needs_cgroup
@pytest.mark.parametrize("path", ["/shell", "/shell/stream"])
def test_detached_daemon_dies_when_the_client_leaves(server, tmp_path, path):
    d = Detached(tmp_path)
    s = socket.create_connection(("127.0.0.1", server.port))
    body = json.dumps({"command": d.command})
    s.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    pid = d.pid()
    assert alive(pid)
    s.close()
    assert gone(pid)


@needs_cgroup
def test_detached_daemon_is_signalled_with_its_process(server, tmp_path):
    d = Detached(tmp_path)
    leader = start(server, d.command)
    pid = d.pid()
    assert server.post(f"/process/{leader}/signal", {"signal": 15})[0] == 200
    assert wait_exit(server, leader) == -15
    assert alive(pid)  # it ignores TERM, and nobody has asked for more
    os.remove(d.note)
    leader = start(server, d.command)
    again = d.pid()
    assert server.post(f"/process/{leader}/signal", {"signal": 9})[0] == 200
    assert gone(again)
    assert alive(pid)  # another program's


def test_detached_daemon_outlives_a_command_that_ended_and_dies_with_the_server(server, tmp_path):
    d = Detached(tmp_path, then="true")
    assert server.shell(d.command)[1]["exit_code"] == 0
    pid = d.pid()
    for _ in range(40):  # those that come later are not mixed up with it
        answer = server.shell("sleep 60", timeout_ms=30)
        assert answer[0] == 500, answer
    assert alive(pid)
    assert server.stop() == 0
    assert gone(pid)


def test_a_script_may_be_longer_than_a_word(server):
    script = "true " + "x" * 131_000 + "; echo $0"
    assert server.shell(script, shell=True)[1]["stdout"] == "/bin/sh\n"
    status, body = server.shell("true " + "x" * 131_072, shell=True)
    assert status == 400 and body["code"] == "command_invalid"
    assert server.shell("true " + "x" * 4097)[0] == 400
    assert server.shell("sh", input="true " + "x" * 200_000 + "; echo in")[1]["stdout"] == "in\n"


def test_limits_that_would_limit_nothing_are_refused(server):
    for limits in ({"memory": 1 << 30}, {"open_files": True}, {"open_files": "10"}, {"cpu_seconds": 1.5}, {"cpu_seconds": 0}):
        status, body = server.shell("true", limits=limits)
        assert status == 400 and "limits" in body["error"], limits


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes users")
def test_a_user_without_an_entry_does_not_live_in_our_home(server):
    assert server.shell("sh -c 'echo $HOME $USER $LOGNAME'", user=12345)[1]["stdout"] == "/ 12345 12345\n"


def test_who_follows_a_program_hears_of_its_end_when_the_server_stops(tmp_path):
    server = Server(tmp_path)
    try:
        script = "sh -c 'trap \"echo bye; exit 3\" TERM; echo up; while :; do sleep 0.05; done'"
        pid = server.post("/process/start", {"command": script, "capture_output": True})[1]["pid"]
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        c.request("GET", f"/process/{pid}/output", headers={"Accept": "text/event-stream"})
        r = c.getresponse()
        head = b""
        while b"up" not in head:
            head += r.read1()
        assert server.stop() == 0
        told = [(name, data.get("data") or data.get("exit_code")) for name, data in events((head + r.read()).decode())
                if name != "stderr"]  # sh tells of the sleep that was ended
        assert told == [("stdout", "up\n"), ("stdout", "bye\n"), ("exit", 3)]
        c.close()
    finally:
        server.process.kill()


@needs_cgroup
def test_cgroups_are_few_and_leave_with_the_server(server):
    parallel(60, lambda i: server.shell("sleep 0.05"))
    ours = next(f"{OWN}/{name}" for name in os.listdir(OWN) if name.startswith(f"abx-{server.pid}-"))

    def count():
        return sum(e.is_dir() for e in os.scandir(ours))

    server.settle(lambda: server.shell("true")[0] == 200 and count() <= 13)  # CGROUPS_IDLE_MAX and one in use
    # A program may make some of its own.
    server.shell(f"sh -c 'mkdir {ours}/$(sed -n s,.*/,,p /proc/self/cgroup | tail -1)/inner'")
    assert server.stop() == 0
    assert not os.path.exists(ours)


@needs_cgroup
def test_what_a_server_killed_hard_left_ends_with_the_next_one(tmp_path):
    first = Server(tmp_path)
    d = Detached(tmp_path, then="true")
    first.shell(d.command)
    pid = d.pid()
    first.process.kill()
    first.process.wait()
    left = [name for name in os.listdir(OWN) if name.startswith(f"abx-{first.pid}-")]
    assert left and alive(pid)
    second = Server(tmp_path)
    try:
        assert alive(pid)  # nothing is done before the first program
        second.shell("true")
        assert gone(pid)
        second.settle(lambda: not os.path.exists(f"{OWN}/{left[0]}"))
    finally:
        second.stop()


@needs_cgroup
def test_programs_start_in_a_cgroup_that_was_once_killed(tmp_path):
    """Some kernels kill what is born into another cgroup when the parent's has been killed before."""
    place = f"{OWN}/abx-test-{os.getpid()}"
    os.mkdir(place)
    open(f"{place}/cgroup.kill", "w").write("1")
    s = Server(tmp_path, ["unshare", "--fork", "--kill-child", "sh", "-c", f'echo $$ > {place}/cgroup.procs; exec "$@"', "sh"])
    try:
        for _ in range(3):
            assert s.shell("sh -c 'exit 7'")[1]["exit_code"] == 7
        assert s.shell("sh -c 'sleep 60 & setsid sleep 61 & wait'", timeout_ms=200)[0] == 500
    finally:
        os.kill(s.pid, signal.SIGTERM)
        s.process.wait(10)
        os.rmdir(place)


def test_without_a_cgroup_to_write_to_everything_else_works(tmp_path):
    read_only = "for m in $(awk '/ - cgroup2 /{print $5}' /proc/self/mountinfo); do mount -o remount,bind,ro $m; done"
    s = Server(tmp_path, ["unshare", "--mount", "--fork", "--kill-child", "sh", "-c", f'{read_only}; exec "$@"', "sh"])
    try:
        assert s.shell("sh -c 'exit 7'")[1]["exit_code"] == 7
        assert s.shell("sh -c 'sleep 60 & setsid sleep 61 & wait'", timeout_ms=200)[0] == 500
        assert not OWN or not [name for name in os.listdir(OWN) if name.startswith(f"abx-{s.pid}-")]
    finally:
        os.kill(s.pid, signal.SIGTERM)
        s.process.wait(10)


# --- processors ------------------------------------------------------------------------------------------

ALL = os.sched_getaffinity(0)


def masks(server):
    found = set()
    for task in os.listdir(f"/proc/{server.pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            found.add(frozenset(os.sched_getaffinity(int(task))))
    return found


def restrict(server, cpus):
    for task in os.listdir(f"/proc/{server.pid}/task"):
        os.sched_setaffinity(int(task), cpus)


def seen_by_programs(server):
    """What several programs, one after the other, may run on."""
    ask = "python3 -c 'import os; print(sorted(os.sched_getaffinity(0)))'"
    return {server.shell(ask)[1]["stdout"].strip() for _ in range(5)}


def start_what_fails(server, tmp_path):
    script = tmp_path / "no-program"
    script.write_text("neither a program nor a script\n")
    script.chmod(0o755)
    assert server.shell(str(script))[0] == 500


def test_programs_may_run_where_the_server_may(server, tmp_path):
    start_what_fails(server, tmp_path)
    assert seen_by_programs(server) == {str(sorted(ALL))}
    assert masks(server) == {frozenset(ALL)}


@pytest.mark.skipif(len(ALL) < 2, reason="one processor")
@pytest.mark.parametrize("n", sorted({1, max(1, len(ALL) - 1)}))
def test_processors_that_an_operator_chose_stay(tmp_path, n):
    some = set(sorted(ALL)[:n])
    os.sched_setaffinity(0, some)  # of this thread, which the server inherits
    try:
        server = Server(tmp_path)
    finally:
        os.sched_setaffinity(0, ALL)
    with contextlib.closing(server):
        start_what_fails(server, tmp_path)
        assert seen_by_programs(server) == {str(sorted(some))}
        assert masks(server) == {frozenset(some)}


@pytest.mark.skipif(len(ALL) < 2, reason="one processor")
def test_processors_that_an_operator_changes_later_stay(tmp_path):
    with contextlib.closing(Server(tmp_path)) as server:
        assert seen_by_programs(server) == {str(sorted(ALL))}
        one = {min(ALL)}
        restrict(server, one)
        assert seen_by_programs(server) == {str(sorted(one))}
        assert masks(server) == {frozenset(one)}
        restrict(server, ALL)
        assert seen_by_programs(server) == {str(sorted(ALL))}
        assert masks(server) == {frozenset(ALL)}


def test_a_start_does_not_wait_for_its_own_program(tmp_path):
    """The worker is free again when its child calls exec; else it would get its turn after the busy child's first slice."""
    with contextlib.closing(Server(tmp_path)) as server:
        for _ in range(20):
            pid = server.post("/process/start", {"command": "while :; do :; done", "shell": True})[1]["pid"]
            assert masks(server) == {frozenset(ALL)}
            assert os.sched_getaffinity(pid) == ALL
            server.post(f"/process/{pid}/signal", {"signal": 9})
            server.settle(lambda: not alive(pid))
