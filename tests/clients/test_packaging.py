"""What `meson install` gives works where it was put: programs by both names, modules, header, manual pages, completions, unit;
Dockerfiles and deployment files pass their own checkers. Whole images and clean roots: scripts/play_image.py, clean_root.py."""

import glob
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request

import jsonschema
import kubernetes_validate
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
    assert (installed / "share/pkgconfig/abx-commands.pc").exists()


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
    for argv in (["man", "--warnings", "-l", path], ["mandoc", "-Tlint", "-Wwarning", path]):
        if shutil.which(argv[0]):
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env={**os.environ, "MANPAGER": "cat"})
            assert (done.returncode, done.stderr) == (0, "")
            if argv[0] == "mandoc":
                assert done.stdout == ""


def options_of(command):
    told = subprocess.run([PROGRAM, command, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"(--[a-z][a-z-]*)", told)) - {"--help"}


def test_completion_offers_what_help_tells(installed):
    script = installed / "share/bash-completion/completions/abx-server"
    for command in ("serve", "check-config", "init", "healthcheck"):
        words = subprocess.run(
            ["bash", "-c", f"source {script}; COMP_WORDS=(abx-server {command} --); COMP_CWORD=2; _abx_server; echo ${{COMPREPLY[@]}}"],
            capture_output=True, text=True, check=True).stdout.split()
        told = subprocess.run([PROGRAM, command, "--help"], capture_output=True, text=True, check=True).stdout
        for option in (w for w in words if w != "--help"):
            assert f"{option} " in told, f"{command} {option}"


# Types a line and Tab into an interactive zsh, and writes what it was offered: complete.zsh FUNCTIONS LINE OUT
ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
turn() { zpty -r -t shell seen 2>/dev/null; sleep 0.02 }
zpty -w shell "PS1= RPS1=; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D
compadd() {
    if [[ \" \$* \" == *' -'[OAD]' '* ]]; then builtin compadd \"\$@\"; return; fi
    local -a got; builtin compadd -O got \"\$@\"; print -rl -- \$got >>$3
}
: >$3.ready"
while [[ ! -e $3.ready ]]; do turn; done
zpty -w -n shell "$2"$'\t'
zpty -w shell $'\x15: >'$3.done
while [[ ! -e $3.done ]]; do turn; done
"""


@pytest.mark.skipif(not shutil.which("zsh"), reason="needs zsh")
@pytest.mark.parametrize("command", ["serve", "check-config", "init", "healthcheck"])
def test_zsh_offers_what_help_tells(installed, tmp_path, command):
    functions = installed / "share/zsh/site-functions"
    out = tmp_path / "out"
    subprocess.run(["zsh", "-f", "-c", ZSH, "zsh", functions, f"agent-sandbox-server {command} --", out], check=True, timeout=60,
                   cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path), "TERM": "dumb"})
    assert set(out.read_text().split()) - {"--help"} == options_of(command)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_unit_is_one_that_systemd_takes(installed, tmp_path):
    unit = (installed / "lib/systemd/system/abx-server.service").read_text()
    assert "/usr/bin/abx-server" in unit
    moved = tmp_path / "abx-server.service"

    def verify(text):
        moved.write_text(text.replace("/usr/bin/abx-server", str(installed / "bin/abx-server")))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", moved], capture_output=True, text=True, timeout=60)
        return done.returncode, "\n".join(line for line in done.stderr.splitlines() if "abx-server" in line)

    assert verify(unit) == (0, "")
    assert "NoNewPriviledges" in verify(unit.replace("NoNewPrivileges", "NoNewPriviledges"))[1]


def test_pkg_config_leads_to_the_header(installed, tmp_path):
    file = installed / "share/pkgconfig/abx-commands.pc"
    flags = subprocess.run(["pkg-config", f"--define-variable=prefix={installed}", "--cflags", file], capture_output=True, text=True,
                           check=True, timeout=30).stdout.split()
    assert f"-I{installed}/include" in flags
    subprocess.run(["cc", "-shared", "-fPIC", *flags, "-o", tmp_path / "commands.so",
                    installed / "share/abx-server/templates/python-hello/commands.c"], check=True, timeout=60)


def test_what_every_image_gets_is_small(installed, tmp_path):
    """Without the modules git, archive and agents, which an image may leave out: programs, libraries, header, pages, templates."""
    layer = shutil.copytree(installed, tmp_path / "layer", symlinks=True)
    programs = [layer / "bin/abx-server", layer / "lib/abx-server/abx-command-host"]
    for module in (layer / "lib/abx-server").glob("abx-*.so"):
        module.unlink()
    subprocess.run(["strip", *programs], check=True, timeout=60)
    linked = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True, timeout=60).stdout
    libraries = {path for name, path in re.findall(r"(\S+) => (/\S+)", linked)
                 if not re.match(r"(libc|libm|libdl|librt|libpthread|lib[a-z]*san)\.so", name)}
    assert any("libuv" in path for path in libraries)
    for path in libraries:
        shutil.copy(path, layer / "lib/abx-server")
    used = sum(path.lstat().st_blocks * 512 for path in layer.rglob("*"))
    assert used < 15_000_000, f"{used / 1e6:.1f} MB"


def dockerfiles(folder):
    return sorted(path for path in glob.glob(os.path.join(folder, "**/Dockerfile*"), recursive=True)
                  if not re.search(r"/(build|dist|\.venv)[^/]*/", path[len(str(folder)):]))


def hadolint(*files):
    return subprocess.run([os.path.join(os.path.dirname(sys.executable), "hadolint"), "--no-color", *files], capture_output=True,
                          text=True, timeout=60)


def test_dockerfiles_pass_hadolint(tmp_path):
    subprocess.run([PROGRAM, "init", tmp_path / "hello"], check=True, timeout=30, capture_output=True)
    ours, written = dockerfiles(ROOT), dockerfiles(tmp_path)
    assert {os.path.basename(p) for p in ours} >= {"Dockerfile.slim", "Dockerfile.fc"} and len(written) == 2
    done = hadolint(*ours, *written)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    wrong = tmp_path / "Dockerfile"
    wrong.write_text("FROM debian:bookworm-slim\nRUN cd /tmp\n")
    assert "DL3003" in hadolint(wrong).stdout


def test_kubernetes_objects_fit_their_schemas():
    folder = os.path.join(ROOT, "deploy/kubernetes")
    version = kubernetes_validate.latest_version()
    objects = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            objects += yaml.safe_load_all(f)
    for one in objects:
        kubernetes_validate.validate(one, version, strict=True)
        assert one["metadata"]["name"].startswith("sandbox")
    assert {one["kind"] for one in objects} == {"Deployment", "Service", "Secret", "NetworkPolicy"}
    objects[-1]["spec"]["podSelectr"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(objects[-1], version, strict=True)


def test_compose_file_fits_its_schema():
    folder = importlib.util.find_spec("compose").submodule_search_locations[0]  # docker-compose 1.29 carries the specification's
    with open(os.path.join(folder, "config/compose_spec.json"), encoding="utf-8") as f:
        validator = jsonschema.Draft7Validator(json.load(f))
    with open(os.path.join(ROOT, "deploy/compose.yaml"), encoding="utf-8") as f:
        file = yaml.safe_load(f)
    assert [error.message for error in validator.iter_errors(file)] == []
    service = file["services"]["sandbox"]
    assert {port.split(":")[0] for port in service["ports"]} == {"127.0.0.1"}
    assert os.path.exists(os.path.join(ROOT, "deploy", service["build"]["context"], service["build"]["dockerfile"]))
    service["cap_dropp"] = []
    assert list(validator.iter_errors(file))
