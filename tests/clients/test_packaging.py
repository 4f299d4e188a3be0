"""What `meson install` gives works where it was put: programs by both names, modules, header, manual pages, completions."""

import json
import os
import shutil
import subprocess
import urllib.request

import pytest
import yaml

from abxconf.server import running
from conftest import PROGRAM, ROOT

BUILD = os.path.abspath(os.environ.get("ABX_BUILD", os.path.join(ROOT, "build")))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    if not shutil.which("meson"):
        pytest.skip("needs meson")
    target = tmp_path_factory.mktemp("installed")
    subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", str(target)], check=True, timeout=120,
                   capture_output=True)
    return next(path.parent.parent for path in target.rglob("bin/abx-server") if not path.is_symlink())


def test_both_names_and_the_header(installed):
    for name in ("abx-server", "agent-sandbox-server"):
        done = subprocess.run([installed / "bin" / name, "--cflags"], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == f"-I{installed}/include"
    assert os.readlink(installed / "bin" / "agent-sandbox-server") == "abx-server"
    assert len(list((installed / "lib").rglob("abx-commands.pc"))) == 1


def test_host_and_modules_are_found_there(installed, tmp_path):
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{installed}/include", "-o", tmp_path / "commands.so",
                    installed / "share/abx-server/templates/python-hello/commands.c"], check=True, timeout=60)
    with running(str(installed / "bin" / "agent-sandbox-server"), commands=str(tmp_path / "commands.so")) as server:
        def ask(path, body):
            request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", json.dumps(body).encode())
            with urllib.request.urlopen(request, timeout=20) as answer:
                return json.load(answer)

        assert ask("/commands/hello", {"name": "Ada"}) == {"result": "Hello, Ada!"}
        with open(os.path.join(server.base, "a"), "w", encoding="ascii") as f:
            f.write("x")
        assert ask("/files/archive", {"paths": ["a"], "format": "zip"})["format"] == "zip"


@pytest.mark.parametrize("page", ["man1/abx-server.1", "man3/abx-commands.3"])
def test_manual_pages(installed, page):
    path = installed / "share/man" / page
    text = path.read_text()
    if page == "man1/abx-server.1":
        for command in ("serve", "check-config", "init", "healthcheck"):
            told = subprocess.run([PROGRAM, command, "--help"], capture_output=True, text=True, check=True).stdout
            for option in {word for word in told.split() if word.startswith("--") and word[2:3].isalpha()}:
                assert option.rstrip(",.;:)").replace("-", "\\-") in text, option
    if shutil.which("man"):
        done = subprocess.run(["man", "--warnings", "-l", path], capture_output=True, text=True, timeout=60)
        assert done.stderr == ""


def test_completion_offers_what_help_tells(installed):
    script = installed / "share/bash-completion/completions/abx-server"
    for command in ("serve", "check-config", "init", "healthcheck"):
        words = subprocess.run(
            ["bash", "-c", f"source {script}; COMP_WORDS=(abx-server {command} --); COMP_CWORD=2; _abx_server; echo ${{COMPREPLY[@]}}"],
            capture_output=True, text=True, check=True).stdout.split()
        told = subprocess.run([PROGRAM, command, "--help"], capture_output=True, text=True, check=True).stdout
        for option in (w for w in words if w != "--help"):
            assert f"{option} " in told, f"{command} {option}"


def test_deployment_files_are_yaml_that_fits():
    with open(os.path.join(ROOT, "deploy/compose.yaml"), encoding="utf-8") as f:
        assert yaml.safe_load(f)["services"]["sandbox"]["ports"]
    folder = os.path.join(ROOT, "deploy/kubernetes")
    kinds = set()
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            for document in yaml.safe_load_all(f):
                kinds.add(document["kind"])
                assert document["metadata"]["name"].startswith("sandbox")
    assert kinds == {"Deployment", "Service", "Secret", "NetworkPolicy"}
