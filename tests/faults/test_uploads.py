"""Uploads of all forms at once, of sizes around the borders of the server's buffers, by clients that leave, dawdle or
send too much, onto disks that are full: who succeeded has written what it sent, and nothing stays of the others.
Server binary: ABX_SERVER; ports: ABX_CONF_PORTS. About five seconds; SOAK=1 runs twenty times as many."""

import base64
import contextlib
import hashlib
import http.client
import json
import os
import random
import socket
import struct
import subprocess
import time

import pytest

from test_process import LONG, SANITIZED, Server, parallel

EDGE = 512 << 10  # bytes of a buffer of the server, which has three for each upload
SIZES = [0, 1, *(n * EDGE + d for n in (1, 2, 3, 4) for d in (-1, 0, 1))]
LIMIT = 3 << 20
BYTES = random.Random(1).randbytes(8 << 20)
ROUNDS = 20 if LONG else 1


def content(rnd, size):
    at = rnd.randrange(len(BYTES) - size)
    return BYTES[at:at + size]


def chunked(rnd, data):
    """In chunks of a few bytes to all; small ones first, so that many come with one read."""
    out, at = [], 0
    step = rnd.choice((100, 1000, 4096, EDGE, max(len(data), 1)))
    while at < len(data):
        piece = data[at:at + step]
        out.append(b"%x\r\n%b\r\n" % (len(piece), piece))
        at += len(piece)
    return b"".join([*out, b"0\r\n\r\n"])


def message(rnd, form, name, data):
    """(head, body) of the upload."""
    if form in ("raw", "chunked"):
        body = data if form == "raw" else chunked(rnd, data)
        framing = f"Content-Length: {len(body)}" if form == "raw" else "Transfer-Encoding: chunked"
        head = f"POST /files/upload-stream?path={name} HTTP/1.1\r\nContent-Type: application/octet-stream\r\n{framing}"
    else:
        fields = [("path", name), ("content_base64", base64.b64encode(data).decode())]
        if form == "json-path-last":  # which the server must keep elsewhere until it knows
            fields.reverse()
        body = json.dumps(dict(fields)).encode()
        pad = -len(body) % EDGE
        if pad < 4096:  # the end of the body on, before and behind a buffer's
            body += b" " * (pad + rnd.choice((-1, 0, 1)) if pad else 0)
        head = f"POST /files/upload-stream HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\nHost: x\r\nConnection: close\r\n\r\n".encode(), body


def send(server, head, body, pieces=1):
    """Sends it in so many pieces, with a breath between. The answer as (status, object); None: cut off without one."""
    s = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    with contextlib.closing(s):
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            s.sendall(head)
            step = len(body) // pieces + 1
            for at in range(0, len(body), step):
                s.sendall(body[at:at + step])
                if pieces > 1:
                    time.sleep(0.005)  # that is how a slow client is
        answer = http.client.HTTPResponse(s)
        try:
            answer.begin()
            return answer.status, json.loads(answer.read())
        except ConnectionResetError:
            return None


def leave(server, head, body, rnd):
    """Sends a part and is gone, in one of three ways."""
    text = head + body
    s = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    with contextlib.closing(s):
        s.sendall(text[:rnd.randrange(len(head), len(text))])
        how = rnd.randrange(3)
        if how == 0:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        elif how == 1:
            s.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                while s.recv(4096):
                    pass


def written(server, name, data, answer):
    assert answer is not None and answer[0] == 200, answer
    assert answer[1]["bytes"] == len(data) and answer[1]["sha256"] == hashlib.sha256(data).hexdigest()
    with open(os.path.join(server.base, name), "rb") as f:
        assert f.read() == data, name


@pytest.fixture
def server(tmp_path):
    s = Server(tmp_path, env={"ABX_MAX_UPLOAD_SIZE": str(LIMIT)})
    yield s
    assert s.stop() == 0


FORMS = ("raw", "chunked", "json", "json-path-last")


@pytest.mark.parametrize("form", FORMS)
def test_sizes_around_the_borders_of_the_buffers(server, form):
    rnd = random.Random(form)
    for size in SIZES:
        data = content(rnd, size)
        written(server, f"of-{size}", data, send(server, *message(rnd, form, f"of-{size}", data)))


def test_everything_at_once_leaves_only_what_succeeded(server, tmp_path):
    good = set()

    def one(i):
        rnd = random.Random(i)
        form, name = FORMS[i % 4], f"f{i}"
        data = content(rnd, rnd.choice(SIZES))
        kind = rnd.randrange(4)
        if kind == 0 and (form != "raw" or data):  # else there is no part of it
            leave(server, *message(rnd, form, name, data), rnd)
        elif kind == 1:
            head, body = message(rnd, form, name, content(rnd, LIMIT + rnd.choice((1, EDGE, 2 * EDGE))))
            answer = send(server, head, b"" if form == "raw" else body)
            assert answer is None or answer[0] == 413, answer
            assert answer or form != "raw"  # refused by its length, of which everybody hears
        else:
            good.add(name)
            written(server, name, data, send(server, *message(rnd, form, name, data), pieces=rnd.choice((1, 1, 7))))

    parallel(32, one)  # the pool and the allocator have grown
    fds, threads, memory = server.fds(), server.threads(), server.memory()
    parallel(160 * ROUNDS, one)
    server.settle(lambda: server.fds() <= fds and server.threads() <= threads)
    assert set(os.listdir(tmp_path)) == good
    assert SANITIZED or server.memory() - memory < 8 << 20


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MiB below the base directory."""
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_costs_only_those_who_found_it_full(small_disk, server):
    free = os.statvfs(small_disk).f_bfree
    outcomes = []

    def one(i):
        rnd = random.Random(i)
        data, name = content(rnd, 2 * EDGE + rnd.choice((0, 1, EDGE))), f"small/f{i}"
        answer = send(server, *message(rnd, FORMS[i % 4], name, data))
        outcomes.append(answer and answer[0])
        if answer and answer[0] == 200:
            written(server, name, data, answer)
        else:
            assert answer is None or answer[1]["code"] == "no_space", answer
            assert not os.path.exists(os.path.join(server.base, name))

    fds = server.fds()
    parallel(40 * ROUNDS, one)
    assert 200 in outcomes and len(set(outcomes)) > 1
    server.settle(lambda: server.fds() <= fds)
    for name in os.listdir(small_disk):
        assert name.startswith("f"), name
        os.remove(small_disk / name)
    assert os.statvfs(small_disk).f_bfree == free
    data = content(random.Random(0), LIMIT)
    written(server, "small/after", data, send(server, *message(random.Random(0), "raw", "small/after", data)))
