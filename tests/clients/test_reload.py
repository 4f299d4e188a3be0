"""--reload: a changed policy takes effect without a restart, a broken one changes nothing."""

import http.client
import json
import os
import time


def ask(server, path, token=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", path, headers={"X-Access-Token": token} if token else {})
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    return answer.status, body


def until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.02)


def replace(path, text):
    with open(path + ".new", "w", encoding="utf-8") as out:
        out.write(text)
    os.rename(path + ".new", path)


def test_a_changed_policy_takes_effect_and_a_broken_one_does_not(start):
    server = start(policy={"endpoints": {"ports": {"enabled": False}}}, flags=["--reload"],
                   env={"ABX_SERVER_TOKEN": "first"})
    path = os.path.join(server.root, "policy.json")
    assert ask(server, "/ports", "first")[0] == 404
    replace(path, json.dumps({"endpoints": {"system_info": {"enabled": False}}}))
    until(lambda: ask(server, "/ports", "first")[0] == 200)
    assert ask(server, "/system/info", "first")[0] == 404
    assert ask(server, "/ports", "wrong")[0] == 401, "the server's own token outlives a reload"

    before = ask(server, "/capabilities", "first")[1]["policy"]["revision"]
    replace(path, '{"endpoints": {"nope": {}}}')
    until(lambda: "reload" in server.log_tail() and "nope" in server.log_tail())
    assert ask(server, "/capabilities", "first")[1]["policy"]["revision"] == before
    replace(path, "{}")
    until(lambda: ask(server, "/system/info", "first")[0] == 200)


def test_without_reload_nothing_is_watched(start):
    server = start(policy={"endpoints": {"ports": {"enabled": False}}})
    replace(os.path.join(server.root, "policy.json"), "{}")
    time.sleep(0.5)  # nothing to wait for: nothing must happen
    assert ask(server, "/ports")[0] == 404


def run(server, name):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("POST", f"/commands/{name}", "{}")
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    return body.get("result", answer.status)


def source(name, result):
    return f'#include <abx/commands.h>\nABX_COMMAND({name}, "") {{ return abx_return_string(call, "{result}"); }}\n'


def test_a_file_of_a_directory_that_breaks_keeps_the_old_commands(start, tmp_path):
    replace(str(tmp_path / "a.c"), source("one", "first"))
    replace(str(tmp_path / "b.c"), source("two", "b"))
    server = start(commands=str(tmp_path), flags=["--reload"])
    assert (run(server, "one"), run(server, "two")) == ("first", "b")
    replace(str(tmp_path / "a.c"), "broken")
    until(lambda: "what was loaded before goes on" in server.log_tail())
    assert run(server, "one") == "first"
    replace(str(tmp_path / "a.c"), source("one", "second"))
    until(lambda: run(server, "one") == "second")
    replace(str(tmp_path / "c.c"), source("three", "new"))
    until(lambda: run(server, "three") == "new")
    os.unlink(tmp_path / "b.c")
    until(lambda: run(server, "two") == 404)
