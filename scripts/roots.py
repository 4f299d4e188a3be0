"""Root file systems made from packages, and programs that run in them in namespaces of their own: what play_image.py and
clean_root.py share. Needs root and mmdebstrap.
"""

import contextlib
import glob
import json
import os
import shutil
import subprocess
import sys
import time

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What a program behind a proxy needs to reach the packages.
PASSED = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
OWN_CERTIFICATES = "usr/local/share/ca-certificates"
# In: $1 the root, then NAME=VALUE settings and the command. A new user namespace (FOREIGN) keeps the emulator of foreign
# programs to itself.
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
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
if [ -n "$SHARED_TMP" ]; then mount --bind /tmp "$root/tmp"; fi
if [ -n "$OWN_NETWORK" ]; then ip link set lo up 2>/dev/null || true; fi
if [ -n "$FOREIGN" ]; then
    mount -t binfmt_misc binfmt_misc "$root/proc/sys/fs/binfmt_misc"
    printf '%s' "$FOREIGN" >"$root/proc/sys/fs/binfmt_misc/register"
fi
if [ -n "$KEEP" ]; then exec chroot $AS "$root" /usr/bin/env "$@"; fi
exec chroot $AS "$root" /usr/bin/env -i "$@"
"""
# binfmt_misc, in the kernel's words: ELF, 64 bits, little-endian, for AArch64, is started by that program of the root.
ARM64 = (r":arm64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:"
         r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64-static:")


UBUNTU = ("jammy", "noble")
UBUNTU_KEYRING = "usr/share/keyrings/ubuntu-archive-keyring.gpg"


def keyring(suite: str, work: str) -> list[str]:
    """What mmdebstrap takes to check a suite's signatures: Debian 13 has Ubuntu's keys in a package, Debian 12 has not."""
    if suite not in UBUNTU or os.path.exists("/" + UBUNTU_KEYRING):
        return []
    return [f"--keyring={make(os.path.join(work, 'keyring-trixie'), 'trixie', ('ubuntu-archive-keyring',))}/{UBUNTU_KEYRING}"]


def make(target: str, suite: str, include: tuple[str, ...] = (), architectures: str = "") -> str:
    """A root of mmdebstrap's smallest variant with these packages too, made once: a target that is there is taken as it is."""
    if not os.path.exists(target):
        shutil.rmtree(target + ".part", ignore_errors=True)
        keys = keyring(suite, os.path.dirname(target))
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "--aptopt=Acquire::Retries 5",
                        '--aptopt=APT::Sandbox::User "root"', *([f"--include={','.join(include)}"] if include else []),
                        *([f"--architectures={architectures}"] if architectures else []), *keys, suite, target + ".part"], check=True)
        os.rename(target + ".part", target)
    return target


def copy(source: str, target: str) -> str:
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", "--reflink=auto", source, target], check=True)
    return target


def trust(root: str) -> None:
    """The root resolves names and trusts certificates as this machine does: a proxy may have a certificate of its own."""
    shutil.copyfile("/etc/resolv.conf", os.path.join(root, "etc/resolv.conf"))
    hosts = os.path.join(root, "etc/hosts")
    if not os.path.exists(hosts):  # no package brings it: installers and container runtimes write it
        with open(hosts, "w", encoding="ascii") as f:
            f.write("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n")
    own = glob.glob(f"/{OWN_CERTIFICATES}/*.crt")
    if own and os.path.exists(os.path.join(root, "usr/sbin/update-ca-certificates")):
        for path in own:
            shutil.copy(path, os.path.join(root, OWN_CERTIFICATES))
        subprocess.run(["chroot", root, "/usr/bin/env", "-i", f"PATH={PATH}", "update-ca-certificates"], check=True,
                       capture_output=True)


def inside(root: str, argv: list[str], env: dict, cwd: str = "/", user: str = "", network: bool = True, shared_tmp: bool = False,
           foreign: str = ""):
    """The command, and its environment, that runs argv as process 1 of its own namespaces in root."""
    namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts"] + ([] if network else ["--net"])
    if foreign:
        namespaces = ["--user", "--map-root-user", *namespaces]
    settings = [f"{k}={v}" for k, v in {**{k: os.environ[k] for k in PASSED if k in os.environ}, **env}.items()]
    command = ["unshare", *namespaces, "/bin/sh", "-c", MOUNTS, "sh", root, *settings, "/bin/sh", "-c",
               'cd "$1" && shift && exec "$@"', "sh", cwd, *argv]
    return command, {**os.environ, "AS": f"--userspec={user}" if user else "", "SHARED_TMP": "1" if shared_tmp else "",
                     "OWN_NETWORK": "" if network else "1", "FOREIGN": foreign, "KEEP": ""}


def run(root: str, command: str, env: dict | None = None, cwd: str = "/", user: str = "", quiet: bool = True, **options) -> None:
    """A shell command in the root, as process 1; SystemExit with what it said when it fails."""
    home = f"/home/{user}" if user else "/root"
    argv, environment = inside(root, ["/bin/sh", "-c", command], {"PATH": PATH, "HOME": home, **(env or {})}, cwd, user, **options)
    done = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if quiet else None,
                          stderr=subprocess.STDOUT if quiet else None, text=True, errors="replace")
    if done.returncode != 0:
        sys.exit(f"{command}\nexit {done.returncode}\n{(done.stdout or '')[-4000:]}")


CALL = """
import http.client, json, sys, time
method, path, body, port, wait = json.loads(sys.argv[1])
end = time.monotonic() + wait
while True:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request(method, path, body)
        answer = connection.getresponse()
        break
    except ConnectionRefusedError:
        if time.monotonic() > end:
            raise
        time.sleep(0.02)
print(json.dumps([answer.status, answer.read().decode()]))
"""


class Running:
    """Something that runs as process 1 of its own namespaces: pid is its number outside."""

    def __init__(self, pid: int, env: dict) -> None:
        self.pid, self.env = pid, env

    def shell(self, command: str) -> str:
        """The output of a shell command beside it, in its root."""
        done = subprocess.run(["nsenter", "-t", str(self.pid), "-m", "-p", "-n", "-r", "-w", "/bin/sh", "-c", command],
                              capture_output=True, text=True, timeout=60, env=self.env)
        if done.returncode != 0:
            sys.exit(f"{command}\nexit {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def call(self, method: str, path: str, body: dict | None = None, port: int = 9000, wait: float = 20) -> tuple[int, dict]:
        """Status and JSON of an answer; only the network is the root's, so nothing need be installed there."""
        asked = json.dumps([method, path, None if body is None else json.dumps(body), port, wait])
        done = subprocess.run(["nsenter", "-t", str(self.pid), "-n", sys.executable, "-c", CALL, asked], capture_output=True,
                              text=True, timeout=120)
        if done.returncode != 0:
            sys.exit(f"{method} {path}: {done.stderr}")
        status, text = json.loads(done.stdout)
        return status, json.loads(text)


@contextlib.contextmanager
def served(root: str, argv: list[str], env: dict, cwd: str = "/", user: str = "", program: str = "abx-server", **options):
    """argv as process 1 without any network but its own loopback; afterwards SIGTERM must end it with 0."""
    command, environment = inside(root, argv, env, cwd, user, network=False, **options)
    server = subprocess.Popen(command, env=environment)
    try:
        first = None
        for _ in range(200):
            time.sleep(0.05)
            if server.poll() is not None:
                sys.exit(f"{argv}: ended with {server.returncode}")
            with open(f"/proc/{server.pid}/task/{server.pid}/children", encoding="ascii") as f:
                first = f.read().split()
            if first and program in os.readlink(f"/proc/{first[0]}/exe"):
                break
        else:
            sys.exit("the command does not start")
        yield Running(int(first[0]), {"PATH": PATH, **env})
        os.kill(int(first[0]), 15)
        code = server.wait(timeout=20)
        if code != 0:
            sys.exit(f"SIGTERM: exit {code}, not 0")
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
