#!/usr/bin/env python3
"""Proves a Dockerfile without a container engine: plays its steps in root file systems made from Debian's packages, starts its
CMD as process 1 in namespaces of its own and asks it; with --conformance also runs cases against the image's server.

    scripts/play_image.py Dockerfile.slim [--arg BUNDLE=tarball] [--context DIR] [--keep DIR] [--conformance AREA...]

Needs root and mmdebstrap. Debian images become mmdebstrap's minbase; any other base image (the platform's, which can't be had
everywhere) is taken to be one with the user `user` and python3, and `start_cmd` of the template.yaml is what it starts.
"""

import argparse
import glob
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

import roots

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# All cases but those that name the server by its process id: the runner sees it from outside of its namespace.
OUTSIDE = r"^(?!process\.signal_to_the_server$)"


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
        return roots.make(os.path.join(self.work, f"base-{suite}"), suite)

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
        roots.trust(stage.root)
        roots.run(stage.root, command, {**stage.env, **scope, "HOME": "/root"}, stage.cwd)

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


def served(stage: Stage):
    """The image's command, as the image's user; its browser may read the only pages there are without a network: the server's."""
    policy = {"endpoints": {"browser_navigate": {"params": {"loopback_ports": ["9000"]}}}}
    env = {**stage.env, "HOME": "/home/user", "ABX_SERVER_POLICY": json.dumps(policy)}
    return roots.served(stage.root, start_cmd(stage), env, stage.cwd, stage.user)


def expect(what: str, found, wanted) -> None:
    if found != wanted:
        sys.exit(f"{what}: expected {wanted!r}, not {found!r}")


def smoke_template(stage: Stage, server: roots.Running) -> None:
    """What the template is for, by the name in its template.yaml."""
    with open(stage.root + stage.cwd + "/template.yaml", encoding="utf-8") as f:
        name = re.search(r"^name: (.*)$", f.read(), re.M)[1]
    if name == "agents-cli":
        found = server.call("POST", "/commands/which_agents", {})[1]["result"]
        expect("agents", sorted(k for k, v in found.items() if v), ["codex", "qwen"])
        for agent in found:
            answer = server.call("POST", "/shell", {"command": f"{agent} --version"})[1]
            expect(f"{agent} --version", (answer["exit_code"], bool(re.search(r"\d+\.\d+", answer["stdout"]))), (0, True))
            print(f"  {agent}: {answer['stdout'].strip()}")
        expect("sessions", server.call("GET", "/v1/agents/sessions")[0], 200)
    elif name == "browser":
        expect("browser", server.call("POST", "/commands/which_browser", {})[1], {"result": "/usr/bin/chromium"})
        page = "http://127.0.0.1:9000/health"
        status, answer = server.call("POST", "/browser/navigate", {"url": page})
        expect("the page", (status, answer.get("url")), (200, page))
    else:
        expect("hello", server.call("POST", "/commands/hello", {"name": "Ada"}), (200, {"result": "Hello, Ada!"}))
        expect("the helper in Python", server.call("POST", "/commands/describe", {"text": "so it goes"})[1]["result"]["words"], 3)


def smoke(stage: Stage) -> None:
    with served(stage) as server:
        def shell(command: str) -> str:
            return server.call("POST", "/shell", {"command": command})[1]["stdout"].strip()

        expect("GET /health", server.call("GET", "/health")[0], 200)
        smoke_template(stage, server)
        expect("user", shell("id -un"), "user" if stage.user else "root")
        expect("process 1", shell("cat /proc/1/comm"), os.path.basename(start_cmd(stage)[0])[:15])  # as much as the kernel keeps
        if stage.user:
            expect("the template's files", shell(f"sh -c 'cd {stage.cwd} && ! test -w commands.so && ! test -w . && echo closed'"), "closed")
        # An orphan becomes process 1's child; it must not stay as a zombie when it ends.
        orphan = shell("sh -c 'setsid sleep 0.2 >/dev/null 2>&1 & echo $!'")
        server.shell(f"for i in $(seq 100); do [ -e /proc/{orphan} ] || exit 0; sleep 0.1; done; cat /proc/{orphan}/stat; exit 1")
        server.shell("abx-server healthcheck && agent-sandbox-server healthcheck --port 9000")
        if stage.health:
            health = shlex.join(stage.health)
            server.shell(health)
            os.kill(server.pid, signal.SIGSTOP)
            server.shell(f"if {health}; then echo healthy though stopped; exit 1; fi")
            os.kill(server.pid, signal.SIGCONT)
        # SIGTERM, which comes next, finds something at work.
        expect("a background process", server.call("POST", "/process/start", {"command": "sleep 1000"})[0], 200)
    print("served, answered, stopped")


def conformance(stage: Stage, areas: list[str]) -> None:
    """The runner starts the image's server through a script, in the image's root but with the runner's /tmp and variables."""
    settings = {k: v for k, v in {**stage.env, "HOME": "/root"}.items() if k != "ABX_SERVER_BASE_DIR"}
    argv, env = roots.inside(stage.root, ["/usr/local/bin/abx-server"], settings, shared_tmp=True)
    exports = "".join(f"export {k}={shlex.quote(v)}\n" for k, v in env.items() if k in ("AS", "SHARED_TMP", "OWN_NETWORK"))
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
        script.write(f'#!/bin/sh\n{exports}export KEEP=1\nexec {shlex.join(argv)} "$@"\n')
        script.flush()
        server = f"/bin/sh {script.name} serve --host 127.0.0.1 --port {{port}} --pty-port {{pty_port}} --base-dir {{base}}"
        flags = [word for area in areas for word in ("--area", area)]
        done = subprocess.run([sys.executable, os.path.join(TOP, "tests/conformance/run.py"), *flags, "--jobs", "1", "--filter", OUTSIDE, "--server", server])
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
