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
