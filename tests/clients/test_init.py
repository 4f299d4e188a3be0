"""`abx-server init`: what it writes compiles, serves and passes its own tests; what is there already stays as it is."""

import json
import os
import shlex
import subprocess
import sys
import urllib.request

import pytest

from conftest import PROGRAM

FILES = {"README.md", "commands.c", "helper.py", "template.yaml", "Makefile", "test_commands.py", "Dockerfile.slim",
         "Dockerfile.fc"}


def init(*args, **options):
    return subprocess.run([PROGRAM, "init", *map(str, args)], capture_output=True, text=True, timeout=30, **options)


@pytest.fixture
def named_server(tmp_path):
    """A PATH on which abx-server is the tested program."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "abx-server").symlink_to(PROGRAM)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def test_full_directory_is_refused_and_left_alone(tmp_path):
    (tmp_path / "notes").write_text("mine")
    done = init(tmp_path)
    assert done.returncode == 1
    assert "is not empty" in done.stderr and "notes" in done.stderr
    assert os.listdir(tmp_path) == ["notes"]


def test_file_in_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    assert init(tmp_path / "file").returncode == 1
    assert init(tmp_path / "file" / "below").returncode == 1
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("args", [[], ["--name", "x"], ["a", "b"], ["a", "--nmae", "x"], ["a", "--name", "Bad Name"],
                                  ["a", "--name", "-x"], ["a", "--name", ""], ["a", "--name"]])
def test_wrong_use_is_refused(tmp_path, args):
    done = init(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: abx-server init DIR")
    assert os.listdir(tmp_path) == []


def test_help():
    done = init("--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: abx-server init DIR")
    assert "init " in subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout


def test_the_name_comes_from_the_directory_or_the_option(tmp_path):
    assert init(tmp_path / "a" / "My first_Template!").returncode == 0
    assert "name: my-first-template\n" in (tmp_path / "a" / "My first_Template!" / "template.yaml").read_text()
    assert init(tmp_path / "b", "--name", "other").returncode == 0
    assert "name: other\n" in (tmp_path / "b" / "template.yaml").read_text()
    assert init("--name", "third", tmp_path / "c").returncode == 0
    assert (tmp_path / "c" / "README.md").read_text().startswith("# third\n")
    for text in (p.read_text() for p in (tmp_path / "b").iterdir()):
        assert "@NAME@" not in text and "python-hello" not in text


def test_what_it_says_works(tmp_path, start, named_server):
    target = tmp_path / "hello"
    done = init(target)
    assert done.returncode == 0
    assert set(os.listdir(target)) == FILES
    build = next(line.strip() for line in done.stdout.splitlines() if line.strip().startswith("cc "))
    subprocess.run(f"cd {shlex.quote(str(target))} && {build}", shell=True, check=True, env=named_server, timeout=120)
    server = start(commands=str(target / "commands.so"))
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/commands/hello", b'{"name":"Ada"}')
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert json.load(answer) == {"result": "Hello, Ada!"}


def test_its_own_tests_pass(tmp_path, named_server):
    target = tmp_path / "hello"
    assert init(target).returncode == 0
    env = {**named_server, "PYTHON": sys.executable, "CFLAGS": "-O1 -Wall -Wextra -Werror"}
    done = subprocess.run(["make", "-C", target, "check"], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_dockerfiles_take_a_bundle_and_the_template_beside_them(tmp_path):
    assert init(tmp_path / "t").returncode == 0
    for name in ("Dockerfile.slim", "Dockerfile.fc"):
        lines = (tmp_path / "t" / name).read_text().splitlines()
        assert "ARG BUNDLE=tarball" in lines and "ARG TEMPLATE=." in lines
