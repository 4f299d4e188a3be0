#!/usr/bin/env python3
"""Tries the project where nothing is installed but what it says it needs: in root file systems made from packages.

    scripts/clean_root.py run [--user]            clone, `make run`, the first answer of /commands/hello; how long each part took
    scripts/clean_root.py test [--user]           clone, `make test`
    scripts/clean_root.py dist DIST               installs each file of DIST (`make dist`): bundle, package, sources
    scripts/clean_root.py bundle BUNDLE SUITE...  the bundle serves on each of these (bookworm, trixie, noble, ...)
    scripts/clean_root.py arm64 DIST              clone, `make dist-arm64` into DIST, and that bundle by emulation

The root of run and test holds Debian's smallest variant with ca-certificates and git; --user: also sudo and a user who may use
it. Both clone the commit that is checked out. --keep DIR works there and leaves the roots (bases are used again); --debs DIR
keeps downloaded packages there, which makes times shorter than a stranger's. Needs root and mmdebstrap. Prints what it did; the exit status is 0 when all of it worked.
"""

import argparse
import contextlib
import glob
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import roots

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def check(what: str, found, wanted) -> None:
    if found != wanted:
        sys.exit(f"{what}: expected {wanted!r}, not {found!r}")
    print(f"  {what}", flush=True)


class Timer:
    """Seconds since the last part, on the clock and of all cores together."""

    def __init__(self) -> None:
        self.total = 0.0
        self.last = self.now()

    @staticmethod
    def now() -> tuple[float, float]:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.monotonic(), used.ru_utime + used.ru_stime

    def part(self, name: str) -> None:
        now = self.now()
        clock, cpu = now[0] - self.last[0], now[1] - self.last[1]
        self.total += clock
        self.last = now
        print(f"  {name}: {clock:.1f} s ({cpu:.1f} s of processor time)", flush=True)


def checkout(work: str, user: str, debs: str | None) -> str:
    """A clean root with a bare clone of this repository in /src.git, and apt's lists as old as the root: none."""
    packages = ("ca-certificates", "git", *(("sudo",) if user else ()))
    base = roots.make(os.path.join(work, "clean-bookworm" + ("-sudo" if user else "")), "bookworm", packages)
    root = roots.copy(base, os.path.join(work, "root"))
    roots.trust(root)
    for path in glob.glob(root + "/var/lib/apt/lists/*Packages*"):
        os.unlink(path)
    if debs:
        os.makedirs(debs, exist_ok=True)
        for path in glob.glob(debs + "/*.deb"):
            shutil.copy(path, root + "/var/cache/apt/archives/")
    if user:
        roots.run(root, f"useradd --create-home --shell /bin/bash {user} && "
                        f"echo '{user} ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/{user}")
    subprocess.run(["git", "clone", "--quiet", "--bare", TOP, root + "/src.git"], check=True)
    if user:
        roots.run(root, f"chown -R {user}: /src.git")
    return root


def keep_debs(root: str, debs: str | None) -> None:
    if debs:
        for path in glob.glob(root + "/var/cache/apt/archives/*.deb"):
            shutil.copy(path, debs)


def settings() -> dict:
    """What a test run may be told from outside."""
    return {k: os.environ[k] for k in ("ABX_CONF_PORTS",) if k in os.environ}


def walk(work: str, user: str, debs: str | None, port: int) -> None:
    """From the clone to the first answer, as README.md says it."""
    root = checkout(work, user, debs)
    home = f"/home/{user}" if user else "/root"
    timer = Timer()
    roots.run(root, "git clone -q /src.git abx-server", cwd=home, user=user)
    timer.part("git clone")
    folder = home + "/abx-server"
    roots.run(root, "scripts/setup.sh", cwd=folder, user=user)
    timer.part("scripts/setup.sh (downloads and installs)")
    roots.run(root, "make build", cwd=folder, user=user)  # by itself, so that its processor time is told
    timer.part("make build")
    log = os.path.join(work, "run.log")
    argv, env = roots.inside(root, ["make", "run", f"PORT={port}", f"PTY_PORT={port + 1}"],
                             {"PATH": roots.PATH, "HOME": home, **settings()}, folder, user)
    with open(log, "w", encoding="utf-8") as out:
        server = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        try:
            body = '{"name":"Ada"}'
            while True:
                asked = subprocess.run(["curl", "-s", "-X", "POST", f"localhost:{port}/commands/hello", "-d", body],
                                       capture_output=True, text=True)
                if asked.returncode == 0:
                    break
                if server.poll() is not None:
                    with open(log, encoding="utf-8") as f:
                        sys.exit(f"make run ended with {server.returncode}\n{f.read()[-4000:]}")
                time.sleep(0.2)
            timer.part("make run, to the first answer")
            check("hello", asked.stdout, '{"result": "Hello, Ada!"}')
        finally:
            # make is process 1 there and takes no signal that it does not wait for; its end ends all.
            server.send_signal(signal.SIGKILL)
            server.wait()
    keep_debs(root, debs)
    print(f"clone to hello: {timer.total:.0f} s")


def whole_test(work: str, user: str, debs: str | None) -> None:
    root = checkout(work, user, debs)
    home = f"/home/{user}" if user else "/root"
    roots.run(root, "git clone -q /src.git abx-server", cwd=home, user=user)
    timer = Timer()
    try:
        roots.run(root, "scripts/setup.sh && make test", settings(), home + "/abx-server", user, quiet=False)
    finally:
        keep_debs(root, debs)
        timer.part("make test")


def commands(folder: str, bundle: str) -> str:
    """commands.so of the model template, compiled against the bundle's header."""
    target = os.path.join(folder, "commands.so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", target, f"-I{bundle}/include",
                    f"{bundle}/share/abx-server/templates/python-hello/commands.c"], check=True)
    return target


def unpack(bundle: str, root: str) -> None:
    os.makedirs(root + "/opt/abx-server", exist_ok=True)
    subprocess.run(["tar", "-C", root + "/opt/abx-server", "-xzf", bundle, "--strip-components=1"], check=True)


SERVE = ["serve", "--commands", "/app/commands.so", "--base-dir", "/app"]
GROUPS = {"PATH": roots.PATH, "HOME": "/root", "ABX_SERVER_ENABLED_GROUPS": "dev_tools,agents"}


def exercise(server: roots.Running) -> None:
    """The core, the command host and each module: what a library that is missing would stop."""
    check("/health", server.call("GET", "/health")[0], 200)
    check("a command", server.call("POST", "/commands/hello", {"name": "Ada"}), (200, {"result": "Hello, Ada!"}))
    check("/shell", server.call("POST", "/shell", {"command": "echo one"})[1]["stdout"], "one\n")
    for form in ("zip", "tar.gz"):
        check(f"module archive: {form}", server.call("POST", "/files/archive", {"paths": ["commands.so"], "format": form})[0], 200)
    check("module git", server.call("GET", "/git/status?path=repo")[1].get("branch"), "No commits yet on main")
    check("module agents", server.call("GET", "/v1/agents/sessions")[0], 200)


def app(root: str, so: str) -> None:
    os.makedirs(root + "/app", exist_ok=True)
    shutil.copy(so, root + "/app/commands.so")
    subprocess.run(["git", "init", "-q", "-b", "main", root + "/app/repo"], check=True)
    subprocess.run(["chown", "-R", "0:0", root + "/app"], check=True)


def bundle_on(work: str, bundle: str, suites: list[str]) -> None:
    for suite in suites:
        root = roots.copy(roots.make(os.path.join(work, f"base-{suite}"), suite), os.path.join(work, f"bundle-{suite}"))
        unpack(bundle, root)
        app(root, commands(work, root + "/opt/abx-server"))
        with open(root + "/etc/os-release", encoding="utf-8") as f:
            name = next(line for line in f if line.startswith("PRETTY_NAME="))[12:].strip().strip('"')
        libc = subprocess.run(["chroot", root, "dpkg-query", "-W", "-f", "${Version}", "libc6"], capture_output=True, text=True,
                              check=True).stdout
        print(f"{name}, libc6 {libc}:", flush=True)
        with roots.served(root, ["/opt/abx-server/bin/abx-server", *SERVE], GROUPS) as server:
            exercise(server)
        shutil.rmtree(root)


def one(folder: str, pattern: str, without: str = " ") -> str:
    found = [path for path in glob.glob(os.path.join(folder, pattern)) if without not in os.path.basename(path)]
    if len(found) != 1:
        sys.exit(f"{folder}: expected one {pattern}, not {found}")
    return found[0]


def artefacts(work: str, dist: str) -> None:
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=dist, check=True)
    check("SHA256SUMS", True, True)
    bundle_on(work, one(dist, "abx-server-*-linux-x86_64.tar.gz"), ["bookworm"])

    print("the package:", flush=True)
    root = roots.copy(os.path.join(work, "base-bookworm"), os.path.join(work, "package"))
    roots.trust(root)
    package = one(dist, "abx-server_*_amd64.deb")
    shutil.copy(package, root + "/tmp/abx-server.deb")
    install = "apt-get update -q && apt-get install -y -q --no-install-recommends"
    roots.run(root, f"{install} /tmp/abx-server.deb gcc libc6-dev pkg-config libgit2-1.5 libarchive13 libsqlite3-0 libcurl4")
    roots.run(root, "cc -shared -fPIC -o /root/commands.so $(pkg-config --cflags abx-commands) "
                    "/usr/share/abx-server/templates/python-hello/commands.c")
    app(root, root + "/root/commands.so")
    with roots.served(root, ["/usr/bin/agent-sandbox-server", *SERVE], GROUPS) as server:
        exercise(server)
    roots.run(root, "dpkg -P abx-server && test -z \"$(find / -xdev -path /app -prune -o -name '*abx*' -print | grep -v /tmp/)\"")
    check("removed without a trace", True, True)
    shutil.rmtree(root)

    print("the sources:", flush=True)
    root = roots.copy(os.path.join(work, "base-bookworm"), os.path.join(work, "sources"))
    roots.trust(root)
    sources = os.path.basename(one(dist, "abx-server-*.tar.gz", without="-linux-"))
    shutil.copy(os.path.join(dist, sources), root + "/tmp")
    folder = "/tmp/" + sources.removesuffix(".tar.gz")
    roots.run(root, f"tar -C /tmp -xzf /tmp/{sources} && cd {folder} && scripts/setup.sh && make build install")
    roots.run(root, "cc -shared -fPIC -o /root/commands.so $(abx-server --cflags) "
                    "/usr/local/share/abx-server/templates/python-hello/commands.c")
    app(root, root + "/root/commands.so")
    with roots.served(root, ["/usr/local/bin/abx-server", *SERVE], GROUPS) as server:
        exercise(server)
    shutil.rmtree(root)


def arm64(work: str, dist: str, debs: str | None) -> None:
    """Cross-built in a clean root; then on x86_64 with arm64's C library: what is ours runs emulated, what it starts as what it is."""
    root = checkout(work, "", debs)
    timer = Timer()
    roots.run(root, "git clone -q /src.git abx-server && cd abx-server && scripts/setup.sh dist arm64 && make dist-arm64", cwd="/root")
    keep_debs(root, debs)
    timer.part("make dist-arm64")
    made = root + "/root/abx-server/dist"
    os.makedirs(dist, exist_ok=True)
    for path in glob.glob(made + "/*arm64*"):
        shutil.copy(path, dist)
    bundle = one(dist, "abx-server-*-linux-arm64.tar.gz")
    unpack(bundle, root)
    roots.run(root, "aarch64-linux-gnu-gcc -shared -fPIC -O2 -o /root/commands.so -I/opt/abx-server/include "
                    "/opt/abx-server/share/abx-server/templates/python-hello/commands.c")
    base = roots.make(os.path.join(work, "base-arm64"), "bookworm", ("libc6:arm64", "busybox-static:arm64", "qemu-user-static"),
                      "amd64,arm64")
    target = roots.copy(base, os.path.join(work, "arm64"))
    unpack(bundle, target)
    app(target, root + "/root/commands.so")
    with roots.served(target, ["/opt/abx-server/bin/abx-server", *SERVE], GROUPS, program="qemu-aarch64",
                      foreign=roots.ARM64) as server:
        exercise(server)
        told = server.call("POST", "/shell", {"command": "/bin/busybox uname -m"})[1]["stdout"]
        check("an arm64 program by /shell", told, "aarch64\n")
    shutil.rmtree(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "test", "dist", "bundle", "arm64"])
    parser.add_argument("words", nargs="*", metavar="ARG")
    parser.add_argument("--user", action="store_true", help="as a user with sudo, not as root")
    parser.add_argument("--port", type=int, default=9000, help="for run: this and the next one")
    parser.add_argument("--keep", metavar="DIR")
    parser.add_argument("--debs", metavar="DIR")
    options = parser.parse_args()
    takes = {"run": 0, "test": 0, "dist": 1, "arm64": 1}
    if len(options.words) != takes.get(options.what, len(options.words)) or (options.what == "bundle" and len(options.words) < 2):
        parser.error("see --help")
    user = "user" if options.user else ""
    with contextlib.ExitStack() as stack:
        work = options.keep
        if not work:
            work = tempfile.mkdtemp(prefix="abx-root-")
            stack.callback(shutil.rmtree, work, ignore_errors=True)
        os.makedirs(work, exist_ok=True)
        if options.what == "run":
            walk(work, user, options.debs, options.port)
        elif options.what == "test":
            whole_test(work, user, options.debs)
        elif options.what == "dist":
            roots.make(os.path.join(work, "base-bookworm"), "bookworm")
            artefacts(work, options.words[0])
        elif options.what == "bundle":
            bundle_on(work, options.words[0], options.words[1:])
        else:
            arm64(work, options.words[0], options.debs)


if __name__ == "__main__":
    main()
