"""Terminals under abuse: what is cut, deleted, flooded or stalled costs that terminal and nothing else.

    python tests/faults/test_pty_faults.py SERVER [ROUNDS]

Needs the `websockets` package. Ports: ABX_FAULT_PORTS (two, default 20198-20199). Exits 1 with what went wrong.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "conformance"))
from pty_client import PtyClient  # noqa: E402
import websockets  # noqa: E402

PORT, PTY_PORT = (int(p) for p in os.environ.get("ABX_FAULT_PORTS", "20198-20199").split("-"))
RSS_MIB = float(os.environ.get("ABX_FAULT_RSS_MIB", "16"))  # that memory may grow by; a sanitizer keeps more


class Server:
    port, pty_port = PORT, PTY_PORT

    def __init__(self, program: str, base: str) -> None:
        policy = os.path.join(base, "policy.json")
        with open(policy, "w") as f:
            json.dump({"version": 1, "endpoints": {"pty_create_session": {"limits": {"max_sessions": 500}}}}, f)
        self.process = subprocess.Popen(
            [program, "serve", "--host", "127.0.0.1", "--port", str(PORT), "--pty-port", str(PTY_PORT),
             "--base-dir", base, "--policy", policy])
        for _ in range(200):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health").read()
                return
            time.sleep(0.05)
        raise SystemExit("the server does not answer")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def rss_mib(self) -> float:
        with open(f"/proc/{self.process.pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmRSS")) / 1024


async def call(pty, method, path, body=None):
    return await asyncio.to_thread(pty.call, method, path, body)


async def flood_rounds(server, pty, rounds: int) -> None:
    """Attach, flood, then one of: cut the socket, delete twice, exit and delete together, close and re-attach."""
    before = server.descriptors()
    for n in range(rounds):
        status, made = await call(pty, "POST", "/pty/sessions", {"shell": "/bin/sh"})
        assert status == 200, made
        path = f"/pty/sessions/{made['session_id']}"
        async with pty.attach(made["session_id"]) as term:
            await term.type("yes\n")
            if n % 2:
                await asyncio.sleep(random.random() / 50)
            kind = n % 4
            if kind == 0:
                term.ws.transport.abort()
            elif kind == 1:
                both = await asyncio.gather(call(pty, "DELETE", path), call(pty, "DELETE", path))
                assert sorted(status for status, _ in both) == [200, 404], both
            elif kind == 2:
                await asyncio.gather(term.type("\x03exit\n"), call(pty, "DELETE", path))
        if kind == 3:
            async with pty.attach(made["session_id"]) as term:
                assert (await term.receive())["event"] == "started"
        await call(pty, "DELETE", path)
        assert (await call(pty, "DELETE", path))[0] == 404
    for _ in range(100):
        if server.descriptors() <= before + 2:
            break
        await asyncio.sleep(0.1)
    assert server.descriptors() <= before + 2, (before, server.descriptors())
    assert (await call(pty, "GET", "/pty/sessions"))[1] == {"sessions": []}


async def stalled_flood(server, pty, seconds: float) -> None:
    """`yes` before a client that does not read: memory stays, others stay quick, and it can go on."""
    _, made = await call(pty, "POST", "/pty/sessions", {"shell": "/bin/sh"})
    _, other = await call(pty, "POST", "/pty/sessions", {"shell": "/bin/sh", "env": {"PS1": "$ "}})
    before = server.rss_mib()
    async with pty.attach(made["session_id"]) as stuck, pty.attach(other["session_id"]) as free:
        await stuck.type("yes\n")
        stuck.ws.transport.pause_reading()
        took = []
        end = time.monotonic() + seconds
        n = 0
        while time.monotonic() < end:
            n += 1
            began = time.monotonic()
            await free.type(f"echo hi-{n}-$((1+1))\n")
            await free.until(f"hi-{n}-2")
            took.append(time.monotonic() - began)
            assert (await call(pty, "GET", "/health"))[0] == 200
            await asyncio.sleep(0.1)
        grown = server.rss_mib() - before
        took.sort()
        usual, worst = took[len(took) * 9 // 10], took[-1]
        print(f"stalled flood: echo beside it {usual * 1000:.1f} ms (9 of 10), {worst * 1000:.1f} ms (worst), memory grew {grown:.1f} MiB")
        assert usual < 0.2 and grown < RSS_MIB
        stuck.ws.transport.resume_reading()
        await stuck.signal("SIGINT")
        await stuck.type("echo back-$((1+1))\n")
        began = time.monotonic()
        async with asyncio.timeout(20):
            while "back-2" not in stuck.output:
                stuck.output = stuck.output[-16:]  # not all of the flood, again and again
                await stuck.receive()
        print(f"prompt back after {time.monotonic() - began:.2f} s")
    for session in (made, other):
        await call(pty, "DELETE", f"/pty/sessions/{session['session_id']}")


async def last_output(pty, rounds: int) -> None:
    for _ in range(rounds):
        _, made = await call(pty, "POST", "/pty/sessions", {"shell": "/bin/sh", "env": {"PS1": "$ "}})
        async with pty.attach(made["session_id"]) as term:
            await term.type("head -c 20000 /dev/zero | tr '\\0' z; exit\n")
            await term.event("exited")
            assert term.output.count("z") >= 20000, term.output.count("z")


async def resume(pty) -> None:
    """A cut connection goes on where it was: no number twice, none missing."""
    _, made = await call(pty, "POST", "/pty/sessions", {"shell": "/bin/sh", "env": {"PS1": ""}})
    text, at = "", 0
    async with pty.attach(made["session_id"]) as term:
        await term.type("stty -echo\n")
        await asyncio.sleep(0.3)
        await term.type("for i in $(seq 1 3000); do echo n$i.; sleep 0.0005; done; echo E''ND\n")
        while "n700." not in text:
            message = await term.receive()
            text += message.get("data", "")
            at = message["next"]
        term.ws.transport.abort()
    await asyncio.sleep(0.5)
    async with pty.attach(made["session_id"], query=f"since={at}") as term:
        while "END" not in text:
            text += (await term.receive()).get("data", "")
    await call(pty, "DELETE", f"/pty/sessions/{made['session_id']}")
    seen = [int(word[1:-1]) for word in text.split() if word.startswith("n") and word.endswith(".")]
    assert seen == list(range(1, 3001)), (len(seen), seen[:3], seen[-3:])


async def hostile_messages(server, pty) -> None:
    _, made = await call(pty, "POST", "/pty/sessions", {"shell": "/bin/sh", "env": {"PS1": "$ "}})
    before = server.rss_mib()
    with contextlib.suppress(websockets.ConnectionClosed):
        async with pty.attach(made["session_id"]) as term:
            async def fragments():
                for _ in range(5000):
                    yield "x" * 65536
            await term.ws.send(fragments())
    async with pty.attach(made["session_id"]) as term:
        with contextlib.suppress(websockets.ConnectionClosed):
            await term.ws.send("y" * (20 << 20))
        assert await term.close_code() in (1009, 1006)
    assert server.rss_mib() - before < RSS_MIB, server.rss_mib() - before
    async with pty.attach(made["session_id"]) as term:
        for message in ("not json", "[]", '{"type":"input"}', b"\x00\xff", '{"type":"resize","cols":0,"rows":0}',
                        '{"type":"resize","cols":-1}', '{"type":"resize","cols":70000}',
                        '{"type":"resize","cols":"80"}', '{"type":"resize","cols":1.5}',
                        '{"type":"resize","cols":null}'):
            await term.send(message)
        await term.type("head -c 65536 /dev/urandom; echo; stty size; echo al''ive\n")
        await term.until("24 80\r\nalive")
    await call(pty, "DELETE", f"/pty/sessions/{made['session_id']}")


async def main(program: str, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as base:
        server = Server(program, base)
        pty = PtyClient.of(server)
        try:
            await last_output(pty, rounds // 2)
            await resume(pty)
            await hostile_messages(server, pty)
            await stalled_flood(server, pty, 3)
            await flood_rounds(server, pty, rounds)
        finally:
            server.process.send_signal(signal.SIGTERM)
            code = server.process.wait(20)
        assert code == 0, code
    print("ok")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 200))
