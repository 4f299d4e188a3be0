"""Commands that crash, hang, flood, leak and fork, over real HTTP: they cost their own call and nothing else.

    ABX_SERVER=build/server/abx-server python -m pytest tests/faults/test_commands_host.py

Needs pytest and a C compiler. Ports: ABX_FAULT_PORTS (LO-HI, default 19880-19899).
"""

import concurrent.futures
import http.client
import itertools
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

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SERVER = os.environ.get("ABX_SERVER", str(ROOT / "build/server/abx-server"))
LOW, HIGH = map(int, os.environ.get("ABX_FAULT_PORTS", "19880-19899").split("-"))
PORTS = itertools.cycle(range(LOW, HIGH + 1))
SLOW = float(os.environ.get("ABX_FAULT_SLOW", "1"))  # sanitizer builds: larger


def free_port():
    for _ in range(HIGH - LOW + 1):
        port = next(PORTS)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    pytest.fail("no free port")


def compile_plugin(source, target, *flags):
    subprocess.run(["cc", "-std=c99", "-D_GNU_SOURCE", "-w", "-shared", "-fPIC", f"-I{ROOT}/include", *flags, "-o", target, source],
                   check=True)
    return target


class Server:
    def __init__(self, base, commands, *flags, **env):
        self.port = free_port()
        self.log = base / "log"
        words = [SERVER, "serve", "--host", "127.0.0.1", "--port", str(self.port), "--pty-port", str(free_port()), "--base-dir",
                 str(base), *flags]
        for c in commands:
            words += ["--commands", str(c)]
        environment = {"PATH": os.environ["PATH"], "HOME": str(base), **env}
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "ABX_MODULE_DIR"):
            if name in os.environ:
                environment[name] = os.environ[name]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(words, stderr=log, stdout=log, env=environment, cwd=base)

    def wait(self):
        for _ in range(int(400 * SLOW)):
            if self.process.poll() is not None:
                return self.process.returncode
            try:
                if self.request("GET", "/health")[0] == 200:
                    return None
            except OSError:
                time.sleep(0.02)
        pytest.fail("the server does not come up: " + self.text())

    def text(self):
        return self.log.read_text()

    def request(self, method, path, body=None, headers=None, timeout=30):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers or {})
            answer = connection.getresponse()
            data = answer.read()
            return answer.status, json.loads(data) if data else None
        finally:
            connection.close()

    def run(self, command, _headers=None, **args):
        return self.request("POST", f"/commands/{command}", args, _headers)

    def result(self, command, **args):
        status, body = self.run(command, **args)
        assert status == 200, body
        return body["result"]

    def fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def rss(self):
        if SLOW > 1:
            return 0  # sanitizers keep freed memory
        return int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4096

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        assert self.process.wait(10 * SLOW) == 0, self.text()


def descendants(pid):
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = pathlib.Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            parents.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(entry))
    found, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def eventually(check, seconds=5.0):
    end = time.monotonic() + seconds * SLOW
    while time.monotonic() < end:
        if check():
            return True
        time.sleep(0.02)
    return bool(check())


@pytest.fixture(scope="session")
def faults(tmp_path_factory):
    return compile_plugin(str(HERE / "commands_faults.c"), str(tmp_path_factory.mktemp("plugin") / "faults.so"))


@pytest.fixture
def server(tmp_path, faults):
    s = Server(tmp_path, [faults], ABX_COMMAND_MEMORY="64MiB")
    assert s.wait() is None, s.text()
    s.result("hello")
    yield s
    s.stop()
    assert "runtime error" not in s.text() and "Sanitizer" not in s.text(), s.text()


@pytest.mark.parametrize(
    "command, type_, extra",
    [("aborts", "CommandCrashed", {"signal": "SIGABRT"}), ("segfaults", "CommandCrashed", {"signal": "SIGSEGV"}),
     ("overflows", "CommandCrashed", {"signal": "SIGSEGV"}), ("exits", "CommandExited", {"exit_code": 3})],
)
def test_a_hundred_ends_of_the_host_cost_their_own_call_only(server, command, type_, extra):
    server.run(command)
    server.result("hello")
    fds, rss = server.fds(), server.rss()
    for _ in range(100):
        status, body = server.run(command)
        assert (status, body["type"]) == (500, type_) and extra.items() <= body.items(), body
    assert server.result("hello") == "Hello, World!"
    assert eventually(lambda: server.fds() <= fds), (fds, server.fds())
    assert eventually(lambda: len(descendants(server.process.pid)) == 1)
    assert server.rss() - rss < 4 << 20


@pytest.mark.parametrize("command", ["hangs", "spins"])
def test_calls_that_never_return_time_out_and_their_host_is_replaced(server, command):
    before = server.result("pid")
    fds = server.fds()
    for _ in range(20):
        started = time.monotonic()
        status, body = server.run(command)
        assert (status, body["type"]) == (500, "TimeoutError")
        assert time.monotonic() - started < 2 * SLOW
        assert server.result("hello") == "Hello, World!"
    assert server.result("pid") != before
    assert eventually(lambda: len(descendants(server.process.pid)) == 1)
    assert eventually(lambda: server.fds() <= fds)


def test_what_a_command_prints_disturbs_nothing(server):
    rss = server.rss()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        flood = pool.submit(server.result, "floods", bytes=100_000_000)
        slowest = 0.0
        while not flood.done():
            started = time.monotonic()
            assert server.request("GET", "/health")[0] == 200
            slowest = max(slowest, time.monotonic() - started)
        assert flood.result() == "printed"
    assert slowest < 0.5 * SLOW
    server.result("logs", lines=20000)
    assert server.rss() - rss < 8 << 20
    assert server.log.stat().st_size < 1 << 20


def test_leaked_descriptors_stay_in_the_host(server):
    fds = server.fds()
    for _ in range(100):
        server.result("leaks_fd")
    assert eventually(lambda: server.fds() <= fds)


def test_a_host_out_of_descriptors_is_replaced(server):
    before = server.result("pid")
    for _ in range(700):
        server.result("leaks_fd")
    assert eventually(lambda: server.result("pid") != before)


@pytest.mark.parametrize("args", [("forks", {}), ("forks", {"own_session": True}), ("daemonizes", {}), ("forks_and_returns", {})])
def test_children_that_a_command_leaves_end_with_its_call(server, args):
    command, arguments = args
    for _ in range(100):
        server.result(command, **arguments)
    assert eventually(lambda: len(descendants(server.process.pid)) == 1)
    assert server.result("hello") == "Hello, World!"


def test_a_host_over_its_memory_is_replaced_and_its_call_ends_well(server):
    before = server.result("pid")
    assert server.result("eats", mib=80) is True
    assert eventually(lambda: server.result("pid") != before)


def test_a_host_far_over_its_memory_is_ended(server):
    status, body = server.run("eats", mib=2000)
    assert (status, body["type"]) == (500, "MemoryError")
    assert server.result("hello") == "Hello, World!"


def test_segv_under_load_fails_only_what_was_in_flight(server):
    fds = server.fds()
    wrong, failed, done = [], [0], [0]
    stop = threading.Event()

    def caller():
        while not stop.is_set():
            status, body = server.run("hello", name="x")
            if status == 200 and body == {"result": "Hello, x!"}:
                done[0] += 1
            elif status == 500 and body.get("type") == "CommandCrashed" and body.get("signal") == "SIGSEGV":
                failed[0] += 1
            else:
                wrong.append((status, body))

    threads = [threading.Thread(target=caller) for _ in range(8)]
    for t in threads:
        t.start()
    for _ in range(10):
        time.sleep(0.1)
        pid = server.result("pid") if not wrong else 0
        os.kill(pid, signal.SIGSEGV)
        assert eventually(lambda: server.run("hello")[0] == 200)
    stop.set()
    for t in threads:
        t.join()
    assert not wrong, wrong[:3]
    assert failed[0] <= 10 * 9 and done[0] > 100
    assert eventually(lambda: server.fds() <= fds)


def test_state_lasts_between_calls_and_ends_with_the_host(server):
    assert [server.result("count") for _ in range(3)] == [1, 2, 3]
    os.kill(server.result("pid"), signal.SIGKILL)
    assert eventually(lambda: server.run("hello")[0] == 200)
    assert server.result("count") == 1


def test_the_command_sees_that_its_caller_left(server, tmp_path):
    mark = tmp_path / "left"
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        body = json.dumps({"file": str(mark)}).encode()
        s.sendall(b"POST /commands/patient HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        time.sleep(0.3)
    assert eventually(mark.exists)


def test_results_that_are_no_json_are_errors_with_an_excerpt(server):
    for text in ('log line {"a": 1}', "", "{", "[1,]", '{"a" 1}', "nul", "1 2", "NaN", '"\t"', '"\\ud800"', "01", "1e999", "[" * 600):
        status, body = server.run("bad_json", text=text)
        assert (status, body["type"]) == (500, "InvalidResult"), (text, body)
        assert text[:20] in body["error"]
    for command in ("unfinished", "keyless"):
        status, body = server.run(command)
        assert (status, body["type"]) == (500, "InvalidResult")
    assert server.run("infinite")[1]["type"] == "ValueError"
    assert server.run("says_nothing")[0] == 500
    assert server.result("bad_json", text=' {"a":[1,2.50,"\u00e9"]} ') == {"a": [1, 2.5, "\u00e9"]}


def test_a_denial_keeps_its_status_code_and_fields(server):
    status, body = server.run("denies")
    assert status == 409
    assert body == {"error": "my message", "type": "PolicyDenied", "code": "my_code", "endpoint": "run_command", "extra_field": [1]}
    assert server.run("denies", status=200)[0] == 500


def test_paths_go_through_the_guard(server, tmp_path):
    assert server.result("resolves", path="a/../b") == str(tmp_path / "b")
    status, body = server.run("resolves", path="/etc/passwd")
    assert (status, body["code"], body["endpoint"]) == (403, "path_not_allowed", "run_command")
    assert server.run("resolves", path="")[0] == 400


def test_arguments_come_converted(server):
    given = {"s": 1.0, "i": "7", "f": 3, "b": "no", "l": ["\u00e9", ""]}
    assert server.result("args", **given) == {"s": "1.0", "i": 7, "f": 3.0, "b": False, "l": ["\u00e9", ""]}
    assert server.result("late%201", **{"any name": "x"}) == 'user {"any name": "x"}'
    names = [c["name"] for c in server.request("GET", "/commands")[1]["commands"]]
    assert names[:3] == ["hello", "pid", "count"] and names[-3:] == ["late 0", "late 1", "late 2"]


def test_streams_of_commands_and_routes(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("POST", "/commands/steps", json.dumps({"n": 2, "fails": True}), {"Accept": "text/event-stream"})
    answer = connection.getresponse()
    assert answer.getheader("Content-Type").startswith("text/event-stream")
    text = answer.read().decode()
    assert text.count("event: step\n") == 2 and "event: error\n" in text and "StepError" in text
    assert server.result("steps", n=2) == 2
    assert server.run("steps", n=0, fails=True)[1]["type"] == "StepError"
    connection.close()


def test_a_reader_that_stops_stops_the_stream(server):
    rss = server.rss()
    with socket.create_connection(("127.0.0.1", server.port)) as s:
        s.sendall(b"GET /firehose HTTP/1.1\r\nHost: x\r\n\r\n")
        s.recv(1000)

        def quiet():
            before = server.result("fired")
            time.sleep(0.2)
            return server.result("fired") == before

        assert eventually(quiet)
        assert server.rss() - rss < 16 << 20
        for _ in range(10):
            assert server.result("hello") == "Hello, World!"
    assert eventually(lambda: len(descendants(server.process.pid)) == 1)
    assert server.result("hello") == "Hello, World!"


def test_routes_can_not_split_or_break_the_answer(server):
    for path in ("/bad-header", "/bad-status"):
        status, body = server.request("GET", path)
        assert (status, body["type"]) == (500, "InvalidResult")
    assert server.request("GET", "/headers", headers={"X-Access-Token": "secret", "User-Agent": "me"})[1] == {
        "agent": "me", "token": None, "path": "/headers"}


def test_many_slow_calls_run_side_by_side(server, tmp_path):
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        started = time.monotonic()
        calls = [pool.submit(server.run, "hangs") for _ in range(40)]
        assert {c.result()[0] for c in calls} == {500}
        assert time.monotonic() - started < 3 * SLOW
    assert server.result("hello") == "Hello, World!"


def test_the_token_reaches_no_command(tmp_path, faults):
    s = Server(tmp_path, [faults], ABX_SERVER_TOKEN="tok-123")
    s.wait()
    headers = {"X-Access-Token": "tok-123"}
    where = s.run("where", headers)[1]["result"]
    assert where["token"] is None and where["identity"] == "server"
    pid = s.run("pid", headers)[1]["result"]
    assert b"tok-123" not in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    s.stop()
    assert "tok-123" not in s.text()


def test_stop_lets_a_call_end(tmp_path, faults):
    s = Server(tmp_path, [faults])
    s.wait()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        call = pool.submit(s.run, "hangs")
        time.sleep(0.1)
        s.stop()
        assert call.result()[1]["type"] == "TimeoutError"
    assert not descendants(s.process.pid)


# --- what --commands refuses ------------------------------------------------------------------------


def refusal(tmp_path, *commands):
    s = Server(tmp_path, commands)
    status = s.wait()
    if status is None:
        s.stop()
        pytest.fail("it was accepted: " + s.text())
    return status, s.text()


def source(tmp_path, text, name="plugin"):
    path = tmp_path / f"{name}.c"
    path.write_text("#include <abx/commands.h>\n" + text)
    return str(path)


def plugin(tmp_path, text, name="plugin", *flags):
    return compile_plugin(source(tmp_path, text, name), str(tmp_path / f"{name}.so"), *flags)


def test_files_that_are_no_commands_files(tmp_path):
    text = tmp_path / "notes.so"
    text.write_text("just text")
    for name in (str(text), "/nowhere/x.so", "mymodule", "commands.py", str(tmp_path / "x.py")):
        status, log = refusal(tmp_path, name)
        assert status == 1 and os.path.basename(name) in log and log.count("\n") == 1, log
    status, log = refusal(tmp_path, compile_plugin("/dev/null", str(tmp_path / "empty.so"), "-x", "c"))
    assert status == 1 and "abx_plugin" in log
    other = tmp_path / "other.so"
    data = bytearray(pathlib.Path(tmp_path / "empty.so").read_bytes())
    data[18] = 0xF3  # e_machine: another one
    other.write_bytes(data)
    assert refusal(tmp_path, other)[0] == 1
    assert "nosuch" in refusal(tmp_path, plugin(tmp_path, 'int nosuch(void); ABX_COMMAND(a, "") { return nosuch(); }', "sym"))[1]
    for text, word in (("99, sizeof(struct abx_plugin)", "ABI version 99"),
                       ("ABX_ABI_VERSION, sizeof(struct abx_plugin), sizeof(struct abx_api) + 8", "newer")):
        status, log = refusal(tmp_path, plugin(
            tmp_path, f"const struct abx_plugin *abx_plugin(void) {{ static struct abx_plugin p = {{{text}}}; return &p; }}",
            "abi", "-DABX_NO_PLUGIN"))
        assert status == 1 and word in log and log.count("\n") == 1, log


@pytest.mark.parametrize(
    "text, word",
    [
        ('ABX_COMMAND(a, "", ABX_NAME("x/y")) { return 0; }', "x/y"),
        ('ABX_COMMAND(a, "", ABX_NAME(" ")) { return 0; }', "name"),
        ('ABX_COMMAND(a, "", ABX_NAME("b")) { return 0; } ABX_COMMAND(b, "") { return 0; }', "'b'"),
        ('ABX_COMMAND(a, "", ABX_STRING(x), ABX_STRING(x)) { return 0; }', "'x'"),
        ('ABX_COMMAND(a, "", ABX_INTEGER(x, .fallback = "many")) { return 0; }', "fallback"),
        ('ABX_COMMAND(a, "", ABX_STRINGS(x, .fallback = "a,b")) { return 0; }', "fallback"),
        ('ABX_COMMAND(a, "", ABX_SCOPE("Not A Scope")) { return 0; }', "scope"),
        ('ABX_COMMAND(a, "", ABX_ARG(9, "x")) { return 0; }', "type"),
        ("ABX_GROUP_OFF(core);", "core"),
        ("ABX_GROUP_ON(nonsense);", "nonsense"),
        ('ABX_ROUTE(a, "GET", "/health", "commands", "") { return 0; }', "/health"),
        ('ABX_ROUTE(a, "POST", "/commands/{x}", "commands", "") { return 0; }', "/commands/{x}"),
        ('ABX_ROUTE(shell, "GET", "/other", "commands", "") { return 0; }', "shell"),
        ('ABX_ROUTE(a, "GET", "/x", "core", "") { return 0; }', "core"),
        ('ABX_ROUTE(a, "HEAD", "/x", "commands", "") { return 0; }', "HEAD"),
        ('ABX_ROUTE(a, "GET", "x", "commands", "") { return 0; }', "'x'"),
        ('ABX_ROUTE(a, "GET", "/x", "commands", "") { return 0; } ABX_ROUTE(b, "GET", "/x", "commands", "") { return 0; }', "/x"),
        ('ABX_LOAD(l) { return abx_load_fail(loader, "the disk is %s", "full"); }', "the disk is full"),
        ('ABX_LOAD(l) { __builtin_trap(); }', "signal"),
    ],
)
def test_registrations_that_are_refused(tmp_path, text, word):
    status, log = refusal(tmp_path, plugin(tmp_path, text))
    assert status == 1 and word in log and log.count("\n") == 1, log


def test_a_file_that_exits_gives_its_status(tmp_path):
    assert refusal(tmp_path, plugin(tmp_path, "#include <stdlib.h>\nABX_LOAD(l) { exit(7); }"))[0] == 7


def test_a_later_file_takes_the_place_of_a_command(tmp_path):
    one = plugin(tmp_path, 'ABX_COMMAND(a, "") { return abx_return_integer(call, 1); } ABX_COMMAND(b, "") { return 0; }', "one")
    two = plugin(tmp_path, 'ABX_COMMAND(c, "") { return 0; } ABX_COMMAND(a, "") { return abx_return_integer(call, 2); }', "two")
    s = Server(tmp_path, [one, two, two])
    s.wait()
    assert s.result("a") == 2
    assert [c["name"] for c in s.request("GET", "/commands")[1]["commands"]] == ["a", "b", "c"]
    assert len(descendants(s.process.pid)) == 2
    assert "takes the place" in s.text()
    s.stop()


def test_a_directory_skips_what_is_broken_and_says_why(tmp_path):
    folder = tmp_path / "plugins"
    folder.mkdir()
    plugin(tmp_path, 'ABX_COMMAND(good, "") { return abx_return_string(call, "fine"); }', "good")
    shutil.copy(tmp_path / "good.so", folder / "a.so")
    (folder / "b.so").write_text("text")
    (folder / "c.txt").write_text("text")
    plugin(tmp_path, 'int nosuch(void); ABX_COMMAND(x, "") { return nosuch(); }', "sym")
    shutil.copy(tmp_path / "sym.so", folder / "d.so")
    (folder / "e.c").write_text("this is no C")
    s = Server(tmp_path, [folder])
    assert s.wait() is None, s.text()
    assert s.result("good") == "fine"
    for name in ("b.so", "c.txt", "d.so", "e.c"):
        assert any(name in line and "skipped" in line for line in s.text().splitlines()), (name, s.text())
    s.stop()


def test_a_source_is_compiled(tmp_path):
    s = Server(tmp_path, [source(tmp_path, 'ABX_COMMAND(a, "") { return abx_return_integer(call, 5); }')])
    assert s.wait() is None, s.text()
    assert s.result("a") == 5
    s.stop()
    status, log = refusal(tmp_path, source(tmp_path, "int broken(", "broken"))
    assert status == 1 and "broken.c" in log and "error" in log
    s = Server(tmp_path, [source(tmp_path, "")], PATH="/nowhere")
    assert s.wait() == 1 and "compiler" in s.text()


def test_own_commands_win_over_builtins(tmp_path):
    s = Server(tmp_path, [plugin(tmp_path, 'ABX_COMMAND(runshell, "Mine.") { return abx_return_string(call, "mine"); }')])
    s.wait()
    assert s.result("runshell") == "mine"
    names = [c["name"] for c in s.request("GET", "/commands?builtin=true")[1]["commands"]]
    assert sorted(names) == ["download", "runshell", "upload"]
    assert [c["name"] for c in s.request("GET", "/commands")[1]["commands"]] == ["runshell"]
    s.stop()


def test_builtin_commands_follow_the_policy_of_their_endpoints(tmp_path):
    s = Server(tmp_path, [])
    s.wait()
    assert s.result("runshell", cmd="echo out; echo err >&2; exit 3") == {"stdout": "out\n", "stderr": "err\n", "exit_code": 3}
    assert s.result("upload", path="d/f.txt", content="h\u00e9")["bytes"] == 3
    assert s.result("download", path="d/f.txt")["content"] == "h\u00e9"
    assert s.run("download", path="/etc/passwd")[0] == 403
    assert s.run("download", path="none")[0] == 404
    assert s.run("upload", path="x")[0] == 400
    assert s.run("runshell", cmd=5)[1]["type"] == "TypeError"
    s.stop()
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"endpoints": {"shell": {"params": {"deny_commands": ["touch"]}},
                                                "files_download_stream": {"limits": {"rate_per_minute": 1}},
                                                "files_upload_stream": {"enabled": False}}}))
    s = Server(tmp_path, [], "--policy", str(policy))
    s.wait()
    assert s.run("runshell", cmd="touch x")[1]["code"] == "command_not_allowed"
    assert s.result("runshell", cmd="echo a b")["stdout"] == "a b\n"
    assert s.run("upload", path="x", content="y")[1]["code"] == "endpoint_disabled"
    s.run("download", path="d/f.txt")
    assert s.run("download", path="d/f.txt")[1]["code"] == "rate_limited"
    s.stop()


def test_reload_takes_a_changed_file_and_keeps_the_old_one_on_errors(tmp_path):
    def build(text):
        plugin(tmp_path, text, "next")
        os.replace(tmp_path / "next.so", tmp_path / "live.so")

    build('ABX_COMMAND(a, "") { return abx_return_integer(call, 1); }')
    s = Server(tmp_path, [tmp_path / "live.so"], "--reload")
    s.wait()
    assert s.result("a") == 1
    fds = s.fds()
    for n in (2, 3, 4):
        build(f'ABX_COMMAND(a, "") {{ return abx_return_integer(call, {n}); }} '
              f'ABX_ROUTE(r{n}, "GET", "/r{n}", "commands", "") {{ return abx_return_integer(call, {n}); }}')
        assert eventually(lambda: s.run("a")[1] == {"result": n}), s.text()
        assert s.request("GET", f"/r{n}") == (200, n)
        assert s.request("GET", f"/r{n - 1}")[0] == 404
    (tmp_path / "live.so").unlink()
    (tmp_path / "live.so").write_text("broken")
    assert eventually(lambda: "goes on" in s.text())
    assert s.result("a") == 4
    build('ABX_COMMAND(a, "") { return abx_return_integer(call, 5); }')
    assert eventually(lambda: s.run("a")[1] == {"result": 5}), s.text()
    assert eventually(lambda: len(descendants(s.process.pid)) == 1)
    assert eventually(lambda: s.fds() <= fds)
    s.stop()
