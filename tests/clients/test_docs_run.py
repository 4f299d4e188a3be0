"""The documentation is run: every shell block of README, docs/ and the other pages does what it says and prints what it
shows; JSON and YAML parse, policies are accepted, C compiles and loads. `pages.py` has the rules."""

import functools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest
import yaml
from abxconf import ports
from abxconf.server import clean_env
from conftest import PROGRAM, ROOT

sys.path.insert(0, os.path.join(ROOT, "scripts"))

import check_docs  # noqa: E402
import pages  # noqa: E402

BUILD = os.environ.get("ABX_BUILD", os.path.join(ROOT, "build"))
PAGES = pages.names()
PAGE_LIMIT_S = 400  # CONTRIBUTING's page builds the project
POLICY_KEYS = {"version", "description", "preset", "base_dir", "groups", "defaults", "endpoints", "auth"}


def blocks_of(page):
    return pages.blocks_of(page, pages.read(page))


def all_blocks(*tags):
    """For parametrize: a page that breaks the rules is told by test_blocks_follow_the_rules, not by the collection."""
    found = []
    for page in PAGES:
        try:
            found += [b for b in blocks_of(page) if b.tag in tags]
        except ValueError:
            continue
    return found


def by_place(block):
    return block.where


# Rules: what would let a block escape is found.

@pytest.mark.parametrize("text, why", [
    ("```\ncurl localhost:9000/health\n```\n", "the tag ''"),
    ("```bash\nls\n```\n", "the tag 'bash'"),
    ("~~~sh\nls\n~~~\n", "three backquotes"),
    ("```sh title\nls\n```\n", "three backquotes"),
    ("```sh\nls\n", "no end"),
    ("```text\n$ ls\n```\n", "looks like shell"),
    ("```text\ncurl -N localhost:9000/health\n```\n", "looks like shell"),
    ("text\n\n    make run\n", "not indented"),
    ("<!-- not run: I do not like it -->\n```sh\nls\n```\n", "the reason"),
    ("<!-- not run: takes minutes -->\n```json\n{}\n```\n", "only what runs"),
    ("<!-- skip: takes minutes -->\n```sh\nls\n```\n", "the setting 'skip'"),
    ("<!-- not run: takes minutes -->\n\n```sh\nls\n```\n", "right above a block"),
])
def test_block_that_would_escape_is_refused(text, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        pages.blocks_of("page.md", text)


def test_output_that_differs_is_found():
    assert pages.fits('{"a": 1, ...}', '{"a": 1, "b": 2}\n')
    assert pages.fits("event: x\n...\nevent: y", "event: x\ndata: 1\n\nevent: y\n\n")
    assert not pages.fits('{"a": 1, ...}', '{"a": 2, "b": 2}')
    assert not pages.fits("", "something")
    assert not pages.fits("one", "one two")
    assert pages.same_shape({"a": 1, "b": [{"c": ""}], "d": None}, {"a": 2.5, "b": [{"c": "x"}, {"c": "y"}], "d": "z"}) is None
    for got in ({"a": 1}, {"a": "1", "b": []}, {"a": True, "b": []}, {"a": 1, "b": {}}, {"a": 1, "b": [], "c": 1}, {"a": 1, "b": [{"c": 2}]}):
        assert pages.same_shape({"a": 1, "b": [{"c": ""}]}, got), got


@pytest.fixture(scope="session")
def model_commands(tmp_path_factory):
    """The model template's commands, as the README's first command serves them."""
    target = tmp_path_factory.mktemp("model") / "commands.so"
    compiled(pathlib.Path(ROOT, "templates/python-hello/commands.c"), target)
    shutil.copy(os.path.join(ROOT, "templates/python-hello/helper.py"), target.parent)
    return target


def compiled(source, target):
    done = subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include", "-o", target, source],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def place(tmp_path):
    taken = [ports.take() for _ in range(3)]
    yield pages.Place(tmp_path, taken)
    for port in taken:
        ports.give(port)


class Reader:
    """Somebody who follows a page: a folder that looks like the checkout, the tested programs on the PATH."""

    def __init__(self, place, model_commands) -> None:
        self.place = place
        bin_ = place.folder / "bin"
        bin_.mkdir()
        listening = f'"$@" --host 127.0.0.1 --port {place.port}'
        script = f"""#!/bin/sh
case "${{1:-}}" in
serve) shift; set -- serve {listening} --pty-port {place.pty_port} ;;
healthcheck) shift; set -- healthcheck {listening} ;;
esac
exec {PROGRAM} "$@"
"""
        for name in ("abx-server", "agent-sandbox-server"):
            (bin_ / name).write_text(script, encoding="utf-8")
            (bin_ / name).chmod(0o755)
        for name in ("codex", "qwen"):  # coding agents without a network, a key or a model
            (bin_ / name).symlink_to(os.path.join(ROOT, "tests/agents", f"fake-{name}"))
        (place.folder / ".curlrc").write_text("silent\nshow-error\nfail-with-body\nmax-time = 60\nnoproxy = *\n", encoding="utf-8")
        self.env = clean_env(str(place.home), {
            "PATH": f"{bin_}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "CURL_HOME": str(place.folder),
            "OUT": str(place.out), "BIN": str(bin_), "ABX_PTY_PORT": str(place.pty_port),
            "MODEL_COMMANDS": str(model_commands), "ABX_SERVER_BASE_DIR": str(place.home), "ABX_STATE_DIR": str(place.folder / "state"),
            "ABX_CONF_PORTS": os.environ.get("ABX_CONF_PORTS"), "PORT": str(place.port), "PTY_PORT": str(place.pty_port),
            "PKG_CONFIG_PATH": os.path.join(BUILD, "meson-private") + ":" + os.path.join(BUILD, "meson-uninstalled")})

    def folder_for(self, page):
        if page.startswith("templates/"):
            return pathlib.Path(shutil.copytree(pathlib.Path(ROOT, page).parent, self.place.folder / "template"))
        view = self.place.folder / "checkout"
        view.mkdir()
        for name in os.listdir(ROOT):
            if not name.startswith((".", "build")) and name != "sandbox":
                (view / name).symlink_to(os.path.join(ROOT, name))
        (view / "build").symlink_to(BUILD)
        return view

    def run(self, page, steps):
        program = self.place.out / "page.sh"
        program.write_text(pages.program(steps, self.folder_for(page)), encoding="utf-8")
        with open(self.place.out / "shell.log", "ab") as log:
            shell = subprocess.Popen(["bash", program], env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            try:
                shell.wait(PAGE_LIMIT_S)
            except subprocess.TimeoutExpired:
                pass
            finally:
                self.end(shell)

    def end(self, shell):
        """Nothing that a page started stays: its shell's group, and that of every server."""
        servers = self.place.out / "servers"
        groups = [int(x) for x in servers.read_text().split()] if servers.exists() else []
        for number in (signal.SIGTERM, signal.SIGKILL):
            for group in [shell.pid, *groups]:
                try:
                    os.killpg(group, number)
                except ProcessLookupError:
                    continue
        shell.wait()

    def left(self, name):
        file = self.place.out / name
        return self.place.outward(file.read_text(encoding="utf-8", errors="replace")) if file.exists() else ""


@pytest.mark.parametrize("page", PAGES)
def test_blocks_follow_the_rules(page):
    assert isinstance(blocks_of(page), list)


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.page == p for b in all_blocks("sh", "console", "python"))])
def test_page_does_what_it_says(page, place, model_commands):
    blocks = blocks_of(page)
    missing = [b.settings["needs"] for b in blocks if "needs" in b.settings and not shutil.which(b.settings["needs"])]
    if missing:
        pytest.skip(f"needs {missing[0]}")
    steps = pages.steps_of(blocks, place, sys.executable)
    if not steps:
        return  # all of them are marked: test_block_that_is_not_run looks at those
    reader = Reader(place, model_commands)
    reader.run(page, steps)
    for number, step in enumerate(steps):
        said, printed = place.outward(step.code), reader.left(f"{number}.out")
        log = "\n".join(reader.left("server.log").splitlines()[-8:])
        assert (place.out / f"{number}.done").exists(), \
            f"{step.where} failed or did not end:\n{said}\n{printed}\n{reader.left(f'{number}.err')}{reader.left('shell.log')}\n{log}"
        if step.expected is None:
            continue
        expected = place.outward(place.inward(step.expected))
        if step.shape:
            wrong = pages.same_shape(json.loads(expected), json.loads(printed))
        else:
            wrong = None if pages.fits(expected, printed) else "other output"
        assert wrong is None, f"{step.where}: {wrong}\n$ {said}\nshown:\n{expected}\nprinted:\n{printed}\n{reader.left(f'{number}.err')}"


# What names only what exists

@functools.cache
def printed_by(*argv):
    """Output of a program that only tells about itself; None when it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    return done.stdout + done.stderr if done.returncode == 0 else None


def unknown_names(text):
    """Options, targets, files and steps that a block names and the checkout does not have."""
    wrong = []
    text = re.sub(r"(?m)(^|\s)#.*$", "", text.replace("\\\n", " "))  # what a comment says is prose
    for program, rest in re.findall(r"(?:^|[\s(;&|])(?:abx|agent-sandbox)-server\s+([a-z-]+)([^\n|;&)#]*)", text):
        if not re.fullmatch(r"-*[a-z]+(-[a-z]+)*", program):
            continue
        known = printed_by(PROGRAM, program, "--help") if not program.startswith("-") else printed_by(PROGRAM, "--help")
        if known is None:
            wrong.append(f"abx-server {program}")
            continue
        wrong += [f"abx-server {program} {o}" for o in re.findall(r"(?<!\S)(--[a-z-]+)", rest) if not re.search(rf"{o}\b", known)]
    makefile = pages.read("Makefile") + pages.read("templates/python-hello/Makefile")
    for targets in re.findall(r"(?:^|[\s;&|(])make\s+([^\n|;&)#]*)", text):
        wrong += [f"make {t}" for t in targets.split() if "=" not in t and not t.startswith("-") and not re.search(rf"^{re.escape(t)}:", makefile, re.M)]
    for path, rest in re.findall(r"(?<![\w/.@-])((?:\./)?(?:scripts|tests|templates|deploy|docs|server|include|packaging)/[\w./-]+|Dockerfile\.\w+)([^\n|;&)#]*)", text):
        file = pathlib.Path(ROOT, path)
        if not file.exists():
            wrong.append(path)
        elif file.is_file() and os.access(file, os.X_OK):
            wrong += [f"{path} {o}" for o in re.findall(r"(?<!\S)(--[a-z-]+)", rest) if o not in file.read_text(encoding="utf-8")
                      and o not in pages.read("tests/bench/bench.py")]
            if path.endswith("scripts/test.py"):
                steps = printed_by(str(file), "--list").split()
                wrong += [f"{path} {s}" for s in rest.split() if not s.startswith("-") and s not in steps]
    return wrong + [f"endpoint {p}" for p in check_docs.unknown_example_paths(text)]


def test_names_that_do_not_exist_are_found():
    for text in ("abx-server serve --prot 1", "abx-server srve", "make runn", "scripts/gone.sh", "scripts/test.py unti", "docker build -f Dockerfile.gone .",
                 "curl localhost:9000/nowhere", "x && abx-server init a --nmae b", "scripts/play_image.py Dockerfile.slim --conformence shell"):
        assert unknown_names(text), text


@pytest.mark.parametrize("page", PAGES)
def test_shell_names_only_what_exists(page):
    for block in blocks_of(page):
        if block.tag in ("sh", "console"):
            assert unknown_names(pages.shell_text(block)) == [], block.where


@pytest.mark.parametrize("block", [b for b in all_blocks("sh", "console", "python") if "not run" in b.settings], ids=by_place)
def test_block_that_is_not_run(block):
    """Its syntax is checked; its names are by the test above. Counted as skipped, so that the number is seen."""
    if block.tag == "python":
        compile(block.text, block.where, "exec", flags=0x2000)  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    else:
        done = subprocess.run(["bash", "-n"], input=pages.shell_text(block), capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr
    pytest.skip(block.settings["not run"])


# Blocks that are no programs

@pytest.mark.parametrize("block", all_blocks("json", "yaml"), ids=by_place)
def test_document_parses_and_policy_is_accepted(block, tmp_path):
    value = json.loads(block.text) if block.tag == "json" else yaml.safe_load(block.text)
    if not isinstance(value, dict) or not value.keys() <= POLICY_KEYS:
        return
    file = tmp_path / f"policy.{block.tag}"
    file.write_text(block.text, encoding="utf-8")
    variables = {name: "a value for the check" for name in re.findall(r"token_env\W+(\w+)", block.text)}
    done = subprocess.run([PROGRAM, "check-config", "--policy", file], env={**os.environ, **variables}, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", sorted({b.page for b in all_blocks("c")}))
def test_c_blocks_compile_and_load(page, tmp_path):
    """All of a page's blocks are one commands file; blocks with `from:` are checked below."""
    texts = [b.text for b in blocks_of(page) if b.tag == "c" and "from" not in b.settings]
    if not texts:
        return
    source = "" if "#include <abx/commands.h>" in texts[0] else "#include <abx/commands.h>\n"
    (tmp_path / "commands.c").write_text(source + "\n".join(texts), encoding="utf-8")
    compiled(tmp_path / "commands.c", tmp_path / "commands.so")
    done = subprocess.run([PROGRAM, "check-config", "--commands", tmp_path / "commands.so"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("block", [b for b in all_blocks(*pages.TAGS) if "from" in b.settings], ids=by_place)
def test_quotation_stands_in_its_source(block):
    source = " ".join(pages.read(block.settings["from"]).split())
    assert " ".join(block.text.split()) in source, f"{block.where} is not in {block.settings['from']}"
