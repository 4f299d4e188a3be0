"""Fixtures for tests that run the real server: ABX_SERVER names the program (default: build/server/abx-server)."""

import contextlib
import os
import socket
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "conformance"))

from abxconf.server import running  # noqa: E402

PROGRAM = os.path.abspath(os.environ.get("ABX_SERVER", os.path.join(ROOT, "build", "server", "abx-server")))


@pytest.fixture
def start():
    """start(policy=..., env=..., flags=[...], commands=...) -> a running server; all end with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(running(PROGRAM, **options))


@pytest.fixture(scope="module")
def server():
    """One server with the default policy, shared by the tests of a file."""
    with running(PROGRAM) as one:
        yield one


class Raw:
    """A TCP connection that says exactly what it is told."""

    def __init__(self, port: int, timeout: float = 10) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.rest = b""

    def send(self, data) -> None:
        self.socket.sendall(data if isinstance(data, bytes) else data.encode("latin-1"))

    def _more(self) -> None:
        piece = self.socket.recv(65536)
        if not piece:
            raise EOFError(f"closed after {self.rest[:200]!r}")
        self.rest += piece

    def read_until(self, mark: bytes) -> bytes:
        while mark not in self.rest:
            self._more()
        head, _, self.rest = self.rest.partition(mark)
        return head

    def read_exactly(self, size: int) -> bytes:
        while len(self.rest) < size:
            self._more()
        data, self.rest = self.rest[:size], self.rest[size:]
        return data

    def answer(self, head_only: bool = False):
        """(status, headers as lower-case dict, body) of one answer."""
        lines = self.read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ")[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if head_only or status in (204, 304) or 100 <= status < 200:
            return status, headers, b""
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self.read_until(b"\r\n"), 16):
                body += self.read_exactly(size)
                self.read_exactly(2)
            self.read_exactly(2)
            return status, headers, body
        if "content-length" in headers:
            return status, headers, self.read_exactly(int(headers["content-length"]))
        return status, headers, self.read_all()

    def read_all(self) -> bytes:
        """What comes until the server closes (a reset counts as a close)."""
        data, self.rest = self.rest, b""
        with contextlib.suppress(ConnectionResetError):
            while piece := self.socket.recv(65536):
                data += piece
        return data

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def connect():
    """connect(server) -> a new Raw connection; all are closed with the test."""
    opened = []

    def one(server, **options):
        opened.append(Raw(server.port, **options))
        return opened[-1]

    yield one
    for each in opened:
        each.close()


@pytest.fixture
def raw(server, connect):
    """raw() -> a new connection to the shared server."""
    return lambda: connect(server)
