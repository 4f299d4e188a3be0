"""Every template compiles without warnings, serves, turns its groups on, and its template.yaml fits what it registers."""

import json
import os
import subprocess
import sys
import urllib.request

import pytest
import yaml

from conftest import PROGRAM, ROOT

TEMPLATES = os.path.join(ROOT, "templates")
CALLS = {"python-hello": ("hello", {"name": "Ada"}), "agents-cli": ("which_agents", {}), "browser": ("which_browser", {})}


def build(name, tmp_path):
    target = str(tmp_path / "commands.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include", "-o", target,
                    os.path.join(TEMPLATES, name, "commands.c")], check=True, timeout=60)
    return target


def ask(server, path, body=None):
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", None if body is None else json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def test_every_template_is_known_here():
    assert sorted(os.listdir(TEMPLATES)) == sorted(CALLS)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_template_serves(name, tmp_path, start):
    with open(os.path.join(TEMPLATES, name, "template.yaml"), encoding="utf-8") as f:
        about = yaml.safe_load(f)
    assert about["name"] == name
    server = start(commands=build(name, tmp_path))
    listed = {c["name"] for c in ask(server, "/commands")["commands"]}
    assert {"commands." + c for c in listed} == set(about["provides"]["server"]["operations"])
    command, arguments = CALLS[name]
    assert "result" in ask(server, f"/commands/{command}", arguments)
    groups = ask(server, "/capabilities")["groups"]
    for group in about["capabilities"]:
        assert groups[group] is True


def test_tests_of_the_model_template_pass(tmp_path):
    env = {**os.environ, "ABX_SERVER": PROGRAM, "COMMANDS": build("python-hello", tmp_path)}
    (tmp_path / "helper.py").write_bytes(open(os.path.join(TEMPLATES, "python-hello", "helper.py"), "rb").read())
    done = subprocess.run([sys.executable, os.path.join(TEMPLATES, "python-hello", "test_commands.py")], env=env,
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
