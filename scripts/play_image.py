#!/usr/bin/env python3
"""Proves a Dockerfile without a container engine: plays its steps in root file systems made from Debian's packages, starts its
CMD as process 1 in namespaces of its own and asks it; with --conformance also runs cases against the image's server.

    scripts/play_image.py Dockerfile.slim [--arg BUNDLE=tarball] [--context DIR] [--keep DIR] [--conformance AREA...]

Needs root and mmdebstrap. Debian images become mmdebstrap's minbase; any other base image (the platform's, which can't be had
everywhere) is taken to be one with the user `user` and python3, and `start_cmd` of the template.yaml is what it starts.
"""

import argparse
import contextlib
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MOUNTS = r"""
set -e
root=$1; shift
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in null zero full random urandom tty; do : >"$root/dev/$node"; mount --bind "/dev/$node" "$root/dev/$node"; done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
if [ -n "$SHARED_TMP" ]; then mount --bind /tmp "$root/tmp"; fi
if [ -n "$OWN_NETWORK" ]; then ip link set lo up 2>/dev/null || true; fi
if [ -n "$KEEP" ]; then exec chroot $AS "$root" /usr/bin/env "$@"; fi
exec chroot $AS "$root" /usr/bin/env -i "$@"
"""


def inside(root: str, argv: list[str], env: dict, cwd: str = "/", user: str = "", network: bool = True, shared_tmp: bool = False):
    """The command that runs argv as process 1 of its own namespaces in root."""
    namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts"] + ([] if network else ["--net"])
    settings = [f"{k}={v}" for k, v in env.items()]
    command = ["unshare", *namespaces, "/bin/sh", "-c", MOUNTS, "sh", root, *settings, "/bin/sh", "-c",
               'cd "$1" && shift && exec "$@"', "sh", cwd, *argv]
    return command, {**os.environ, "AS": f"--userspec={user}" if user else "", "SHARED_TMP": "1" if shared_tmp else "",
                     "OWN_NETWORK": "" if network else "1", "KEEP": ""}


class Stage:
    def __init__(self, root: str, env: dict) -> None:
        self.root, self.env, self.cwd, self.user = root, env, "/", ""
        self.cmd: list[str] | None = None
        self.health: list[str] | None = None


class Image:
    def __init__(self, dockerfile: str, context: str, args: dict, work: str) -> None:
        self.context, self.work, self.given, self.stages = context, work, args, {}
        with open(dockerfile, encoding="utf-8") as f:
            text = re.sub(r"^\s*#.*\n", "", f.read(), flags=re.M)
        self.steps = [line.strip().partition(" ")[::2] for line in text.replace("\\\n", " ").splitlines() if line.strip()]

    def base(self, name: str) -> str:
        """A cached root file system for an image, by mmdebstrap."""
        suite = (re.match(r"debian:(\w+)", name) or ["", "bookworm"])[1]
        cached = os.path.join(self.work, f"base-{suite}")
        if not os.path.exists(cached):
            shutil.rmtree(cached + ".part", ignore_errors=True)
            subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "--aptopt=Acquire::Retries 5",
                            '--aptopt=APT::Sandbox::User "root"', suite, cached + ".part"], check=True)
            os.rename(cached + ".part", cached)
        return cached

    def build(self) -> Stage:
        wanted, args, stage, names = set(), {}, None, {}
        for kind, rest in self.steps:  # which stages the last one needs
            if kind == "ARG" and not names:
                key, _, value = rest.partition("=")
                args[key] = self.given.get(key, value)
            elif kind == "FROM":
                source, _, name = self.fill(rest, args).partition(" AS ")
                names[name] = {source}
                last = name
            elif kind == "COPY" and (found := re.match(r"--from=(\S+)", rest)):
                names[last].add(found[1])
        todo = [last]
        while todo:
            name = todo.pop()
            wanted.add(name)
            todo += [n for n in names[name] if n in names]
        skip, scope = False, {}
        for kind, rest in self.steps:
            if kind == "FROM":
                source, _, name = self.fill(rest, args).partition(" AS ")
                skip = name not in wanted
                if skip:
                    continue
                print(f"FROM {source}{' AS ' + name if name else ''}", flush=True)
                root = os.path.join(self.work, f"stage-{len(self.stages)}")
                parent = self.stages.get(source)
                subprocess.run(["cp", "-a", "--reflink=auto", parent.root if parent else self.base(source), root], check=True)
                stage = self.stages[name] = Stage(root, dict(parent.env) if parent else {
                    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})
                stage.cwd = parent.cwd if parent else "/"
                scope = {}
                if not parent and not source.startswith("debian:"):
                    self.run(stage, "useradd -m -u 1000 -s /bin/bash user && apt-get update -q && "
                                    "apt-get install -y -q --no-install-recommends python3", {})
                    stage.user = "user"
            elif not skip and stage:
                if kind == "ARG":
                    key, _, value = rest.partition("=")
                    scope[key] = self.given.get(key, value or args.get(key, ""))
                else:
                    self.step(stage, kind, rest, scope)
        return self.stages[last]

    @staticmethod
    def fill(text: str, values: dict) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda m: values.get(m[1], ""), text)

    def run(self, stage: Stage, command: str, scope: dict) -> None:
        shutil.copyfile("/etc/resolv.conf", os.path.join(stage.root, "etc/resolv.conf"))
        argv, env = inside(stage.root, ["/bin/sh", "-c", command], {**stage.env, **scope, "HOME": "/root"}, stage.cwd)
        subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL)

    def step(self, stage: Stage, kind: str, rest: str, scope: dict) -> None:
        print(f"  {kind} {rest[:100]}", flush=True)
        if kind == "RUN":
            self.run(stage, rest, scope)
        elif kind == "WORKDIR":
            stage.cwd = rest
            os.makedirs(stage.root + rest, exist_ok=True)
        elif kind == "ENV":
            key, _, value = rest.partition("=")
            stage.env[key] = value
        elif kind == "USER":
            stage.user = rest
        elif kind == "COPY":
            self.copy(stage, self.fill(rest, {**stage.env, **scope}).split())
        elif kind == "CMD":
            stage.cmd = json.loads(rest)
        elif kind == "HEALTHCHECK":
            stage.health = json.loads(rest[rest.index("CMD") + 3:])
        elif kind != "EXPOSE":
            sys.exit(f"{kind} is not known here")

    def copy(self, stage: Stage, words: list[str]) -> None:
        options = [w for w in words if w.startswith("--")]
        *sources, target = [w for w in words if not w.startswith("--")]
        origin = self.context
        for option in options:
            if option.startswith("--from="):
                origin = self.stages[option[7:]].root
        target = os.path.join(stage.root, os.path.normpath(os.path.join(stage.cwd, target)).lstrip("/"))
        ignored = []
        if origin == self.context and os.path.exists(os.path.join(origin, ".dockerignore")):
            with open(os.path.join(origin, ".dockerignore"), encoding="utf-8") as f:
                ignored = [f"--exclude=./{line.strip()}" for line in f if line.strip()]
        for pattern in sources:
            found = glob.glob(os.path.join(origin, pattern.strip("/"))) if pattern != "." else [origin]
            if not found:
                sys.exit(f"COPY {pattern}: no such file")
            for path in found:
                os.makedirs(target, exist_ok=True)
                if os.path.isdir(path):
                    pack = subprocess.Popen(["tar", "-C", path, *ignored, "-cf", "-", "."], stdout=subprocess.PIPE)
                    subprocess.run(["tar", "-C", target, "--no-same-owner", "-xf", "-"], stdin=pack.stdout, check=True)
                    if pack.wait() != 0:
                        sys.exit(f"COPY {pattern} failed")
                else:
                    shutil.copy2(path, target)


def start_cmd(stage: Stage) -> list[str]:
    """CMD, or what the platform starts: start_cmd of template.yaml."""
    if stage.cmd:
        return stage.cmd
    with open(stage.root + stage.cwd + "/template.yaml", encoding="utf-8") as f:
        return shlex.split(re.search(r"^start_cmd: (.*)$", f.read(), re.M)[1])


@contextlib.contextmanager
def served(stage: Stage):
    """The image's command as process 1 without any network but its own loopback; gives ask(shell command) -> output."""
    argv, env = inside(stage.root, start_cmd(stage), {**stage.env, "HOME": "/home/user"}, stage.cwd, stage.user, network=False)
    server = subprocess.Popen(argv, env=env)
    try:
        first = None
        for _ in range(100):
            time.sleep(0.05)
            children = f"/proc/{server.pid}/task/{server.pid}/children"
            with open(children, encoding="ascii") as f:
                first = f.read().split()
            if first and "abx-server" in os.readlink(f"/proc/{first[0]}/exe"):
                break
        else:
            sys.exit("the command does not start")

        def ask(command: str) -> str:
            done = subprocess.run(["nsenter", "-t", first[0], "-m", "-p", "-n", "-r", "-w", "/bin/sh", "-c", command],
                                  capture_output=True, text=True, timeout=60, env=stage.env)
            if done.returncode != 0:
                sys.exit(f"{command}\nexit {done.returncode}: {done.stdout}{done.stderr}")
            return done.stdout
        yield ask, int(first[0])
        os.kill(int(first[0]), 15)
        code = server.wait(timeout=10)
        if code != 0:
            sys.exit(f"SIGTERM: exit {code}, not 0")
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


PYTHON_GET = """python3 - <<'END'
import json, time, urllib.request
def call(path, body=None):
    return urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:9000" + path, body and json.dumps(body).encode()), timeout=20)
for _ in range(100):
    try:
        assert call("/health").status == 200
        break
    except OSError:
        time.sleep(0.05)
print(json.load(call("/commands/hello", {"name": "Ada"})))
print(json.load(call("/commands/describe", {"text": "so it goes"}))["result"]["words"])
print(json.load(call("/shell", {"command": "id -un"}))["stdout"].strip())
print(json.load(call("/shell", {"command": "cat /proc/1/comm"}))["stdout"].strip())
END"""


def smoke(stage: Stage) -> None:
    with served(stage) as (ask, _):
        answers = ask(PYTHON_GET).split("\n")
        expected = ["{'result': 'Hello, Ada!'}", "3", "user" if stage.user else "root",
                    os.path.basename(start_cmd(stage)[0])[:15]]  # as much of a name as the kernel keeps
        if answers[:4] != expected:
            sys.exit(f"expected {expected}, not {answers}")
        ask("abx-server healthcheck && agent-sandbox-server healthcheck --port 9000")
        if stage.health:
            ask(shlex.join(stage.health))
    print("served, answered, stopped")


def conformance(stage: Stage, areas: list[str]) -> None:
    """The runner starts the image's server through a script, in the image's root but with the runner's /tmp and variables."""
    settings = {k: v for k, v in {**stage.env, "HOME": "/root"}.items() if k != "ABX_SERVER_BASE_DIR"}
    argv, env = inside(stage.root, ["/usr/local/bin/abx-server"], settings, shared_tmp=True)
    exports = "".join(f"export {k}={shlex.quote(v)}\n" for k, v in env.items() if k in ("AS", "SHARED_TMP", "OWN_NETWORK"))
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
        script.write(f'#!/bin/sh\n{exports}export KEEP=1\nexec {shlex.join(argv)} "$@"\n')
        script.flush()
        server = f"/bin/sh {script.name} serve --host 127.0.0.1 --port {{port}} --pty-port {{pty_port}} --base-dir {{base}}"
        flags = [word for area in areas for word in ("--area", area)]
        done = subprocess.run([sys.executable, os.path.join(TOP, "tests/conformance/run.py"), *flags, "--jobs", "1", "--server", server])
        if done.returncode != 0:
            sys.exit("conformance failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dockerfile")
    parser.add_argument("--context", default=TOP)
    parser.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--keep", metavar="DIR", help="work here and leave the roots (the Debian base is used again)")
    parser.add_argument("--conformance", nargs="*", default=[], metavar="AREA")
    options = parser.parse_args()
    work = options.keep or tempfile.mkdtemp(prefix="abx-image-")
    os.makedirs(work, exist_ok=True)
    for old in glob.glob(os.path.join(work, "stage-*")):
        shutil.rmtree(old)
    try:
        image = Image(options.dockerfile, options.context, dict(a.split("=", 1) for a in options.arg), work)
        stage = image.build()
        size = subprocess.run(["du", "-sm", stage.root + "/opt/abx-server"], capture_output=True, text=True).stdout.split()[0]
        print(f"our files: {size} MB")
        smoke(stage)
        if options.conformance:
            conformance(stage, options.conformance)
    finally:
        if not options.keep:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
