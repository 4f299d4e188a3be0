"""README.md and docs/ say what the sources have: endpoints, variables, codes, limits, options, links; the examples in
C of docs/commands.md do what the page says."""

import http.client
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))

import check_docs  # noqa: E402
import pytest  # noqa: E402

CHECKS = check_docs.CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_docs_and_sources_agree(check):
    assert check(check_docs.pages()) == []


def test_what_is_not_documented_is_found():
    nothing = {"README.md": "", "docs/policy.md": "GET /nowhere and [this](gone.md), ABX_SERVER_NO_SUCH_THING, `tests/gone.py`"}
    for check in CHECKS:
        assert check(nothing), check.__name__


def test_anchors_are_those_of_the_headings():
    page = "# A b\n## `serve`, and *more*\n## A b\n```\n# no heading\n```\n"
    assert check_docs.anchors(page) == {"a-b", "serve-and-more", "a-b-1"}
    page = "[x](#a-b) [y](#gone) [z](policy.md#no-such)"
    assert len([w for w in check_docs.check_links({"docs/policy.md": "# P", "docs/git.md": page + "\n# A b"}) if w.startswith("docs/git.md")]) == 2


def ask(server, method, path, body="{}", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(method, path, body if method == "POST" else None, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def test_the_commands_of_the_docs_work(start, tmp_path):
    page = check_docs.read("docs/commands.md")
    source = tmp_path / "commands.c"
    source.write_text("\n".join(re.findall(r"^```c\n(.*?)^```", page, re.S | re.M)), encoding="utf-8")
    server = start(commands=str(source))
    assert ask(server, "POST", "/commands/hello", '{"name": "Ada"}')[1] == '{"result": "Hello, Ada!"}'
    events = ask(server, "POST", "/commands/build", Accept="text/event-stream")[1]
    assert events.count("event: progress") == 3 and 'event: result\ndata: {"result": "built all"}' in events
    answer, text = ask(server, "POST", "/items/7")
    assert (answer.status, answer.headers["X-Item"], text) == (201, "7", '{"made": true}')
    assert ask(server, "GET", "/ticks")[1].count("event: tick") == 3
