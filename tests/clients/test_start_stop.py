"""Start, stop, and what the server is given at its start: descriptors, signals, ports, a log that nobody reads."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import pytest

from abxconf import ports
from abxconf.server import clean_env, running

from conftest import PROGRAM


class Plain:
    """A server started by hand, for what abxconf's does not do."""

    def __init__(self, flags=(), **options):
        self.port, self.pty_port = ports.take(), ports.take()
        self.folder = tempfile.mkdtemp(prefix="abx-start-")
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "--host", "127.0.0.1", "--port", str(self.port), "--pty-port", str(self.pty_port),
             "--base-dir", self.folder, *flags], env=clean_env(self.folder), **options)

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def wait_ready(self):
        until = time.monotonic() + 20
        while time.monotonic() < until and self.process.poll() is None:
            with contextlib.suppress(OSError):
                return self.ask("GET", "/health")
            time.sleep(0.02)
        raise AssertionError(f"not ready: {self.process.poll()}")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(6)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        ports.give(self.port)
        ports.give(self.pty_port)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def plain():
    with contextlib.ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(contextlib.closing(Plain(*args, **options)))


def rss_kb(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def sanitized():
    with open(PROGRAM, "rb") as program:
        data = program.read()
    return b"__asan_init" in data or b"__tsan_init" in data


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_standard_descriptors_are_filled(plain, closed):
    server = plain(preexec_fn=lambda: [os.close(fd) for fd in closed])
    server.wait_ready()
    for fd in closed:
        assert os.readlink(f"/proc/{server.process.pid}/fd/{fd}") == "/dev/null"
    assert server.ask("POST", "/shell", {"command": "cat"})[1]["exit_code"] == 0
    assert server.ask("POST", "/shell", {"command": 5})[0] == 400
    assert server.stop() == 0


def noisy(server, rounds=400):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    for _ in range(rounds):
        connection.request("POST", "/shell", b'{"command": "' + b"x" * 1000)
        answer = connection.getresponse()
        assert answer.read() and answer.status == 400
    connection.close()


def test_a_log_that_nobody_reads_blocks_nothing(plain):
    reader, writer = os.pipe()
    server = plain(stdout=writer, stderr=writer)
    os.close(writer)
    server.wait_ready()
    noisy(server, 2000)
    assert server.ask("POST", "/shell", {"command": "echo hi"})[1]["stdout"] == "hi\n"
    assert server.stop() == 0
    os.close(reader)


def test_a_log_whose_reader_has_gone_ends_nothing(plain):
    reader, writer = os.pipe()
    server = plain(stdout=writer, stderr=writer)
    os.close(writer)
    os.close(reader)
    server.wait_ready()
    noisy(server)
    assert server.stop() == 0


def test_a_log_on_a_full_disk_ends_nothing(plain):
    with open("/dev/full", "w", encoding="ascii") as full:
        server = plain(stdout=full, stderr=full)
    server.wait_ready()
    noisy(server)
    assert server.stop() == 0


def test_sigterm_during_the_start_is_an_orderly_end(plain, tmp_path):
    source, library = tmp_path / "slow.c", tmp_path / "slow.so"
    source.write_text("#include <unistd.h>\n__attribute__((constructor)) static void begin(void) { pause(); }\n")
    if not shutil.which("cc"):
        pytest.skip("no compiler")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    server = plain(["--commands", str(library)])
    until = time.monotonic() + 10
    while time.monotonic() < until:  # until its command host is there: the start waits for that
        children = subprocess.run(["ps", "-ww", "--ppid", str(server.process.pid), "-o", "args="], text=True,
                                  capture_output=True, check=False).stdout
        if "slow.so" in children:
            break
        time.sleep(0.02)
    assert server.stop() == 0


def test_a_taken_port_is_named_whichever_it_is():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        taken, free = busy.getsockname()[1], ports.take()
        for flags in (["--port", str(taken), "--pty-port", str(free)], ["--port", str(free), "--pty-port", str(taken)]):
            done = subprocess.run([PROGRAM, "serve", "--host", "127.0.0.1", *flags], env=clean_env("/tmp"), text=True,
                                  capture_output=True, timeout=10, check=False)
            assert done.returncode == 1 and str(taken) in done.stderr
        ports.give(free)


def told_at_the_start(plain, *flags):
    server = plain(flags, stderr=subprocess.PIPE)
    server.wait_ready()
    assert server.stop() == 0
    return [(line["level"], line["message"]) for line in map(json.loads, server.process.stderr)]


def test_the_start_names_the_base_directory_in_force(plain, tmp_path):
    policy, files = tmp_path / "policy.json", tmp_path / "files"
    policy.write_text(json.dumps({"base_dir": str(files)}))
    files.mkdir()
    told = told_at_the_start(plain, "--policy", str(policy))
    assert told[0][1].endswith(f"base directory {files}")
    assert not [message for level, message in told if level == "warn"]


@pytest.mark.parametrize("name, reason", [("missing", "No such file or directory"), ("file", "Not a directory")])
def test_a_base_directory_that_is_none_is_warned_about(plain, tmp_path, name, reason):
    (tmp_path / "file").touch()
    base = tmp_path / name
    warnings = [message for level, message in told_at_the_start(plain, "--base-dir", str(base)) if level == "warn"]
    assert len(warnings) == 1 and str(base) in warnings[0] and reason in warnings[0]


def test_check_config_with_commands_ends_in_order():
    """Its command host is being ended by a worker when the check is over; side by side, so that workers are late."""
    commands = os.environ.get("ABX_COMMANDS", os.path.join(os.path.dirname(PROGRAM), "..", "tests", "commands_fixture.so"))
    for _ in range(5):
        checks = [subprocess.Popen([PROGRAM, "check-config", "--commands", commands], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                  for _ in range(8)]
        assert [(check.communicate(timeout=60)[1], check.returncode) for check in checks] == [(b"", 0)] * 8


def test_check_config_with_commands_that_are_not_there_ends():
    check = subprocess.run([PROGRAM, "check-config", "--commands", "/nowhere/none.so"], capture_output=True, timeout=10)
    assert check.returncode == 1 and b"/nowhere/none.so" in check.stderr


@pytest.mark.parametrize("port", ["0", "99999", "-1", "x", "", "80.5"])
def test_bad_port_numbers_are_refused(port):
    for flag in ("--port", "--pty-port"):
        done = subprocess.run([PROGRAM, "serve", flag, port], env=clean_env("/tmp"), text=True, capture_output=True,
                              timeout=10, check=False)
        assert done.returncode == 2 and flag in done.stderr


def test_few_descriptors_idle_ones_make_room_and_busy_ones_a_whole_503(connect):
    with running(f"prlimit --nofile=64:64 {PROGRAM}") as server:
        idle = [connect(server) for _ in range(200)]
        for _ in range(3):
            fresh = connect(server)
            fresh.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert fresh.answer()[0] == 200
        for one in idle:
            one.close()
        busy = [connect(server) for _ in range(100)]
        for one in busy:
            with contextlib.suppress(OSError):
                one.send("POST /shell HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx")
        refused = connect(server)
        status, headers, body = refused.answer()
        assert status == 503 and json.loads(body)["code"] == "overloaded" and headers["retry-after"] == "1"
        assert refused.read_all() == b""
        for one in busy:
            one.close()
        until = time.monotonic() + 2
        while time.monotonic() < until:
            with contextlib.suppress(OSError, EOFError):
                again = connect(server)
                again.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                if again.answer()[0] == 200:
                    break
        else:
            raise AssertionError("still refused")


HOSTILE = {
    "long_word": b'{"command": "' + b"a" * (9 << 20) + b'"}',
    "many_words": b'{"command": "' + b"a " * (4 << 20) + b'"}',
    "many_values": b'{"n": [' + b"{}," * 99000 + b"1]}",
    "giant_number": b'{"n": ' + b"9" * (5 << 20) + b"}",
    "deep": b"[" * 100000,
}


@pytest.mark.skipif(sanitized(), reason="sanitizers keep freed memory")
def test_memory_returns_after_hostile_bodies(start):
    server = start()
    pid = server.process.pid
    before = rss_kb(pid)
    for name, body in HOSTILE.items():
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.request("POST", "/shell", body)
        assert connection.getresponse().status == 400, name
        connection.close()
    until = time.monotonic() + 10
    while rss_kb(pid) > before + 8192 and time.monotonic() < until:
        time.sleep(0.1)
    assert rss_kb(pid) <= before + 8192
    with open(f"/proc/{pid}/status", encoding="ascii") as lines:
        peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    assert peak < 96 * 1024, "a refusal must not cost many times its body"
