"""WebSocket frames by the byte, on the terminal port: what must be refused, with the code that says why."""

import contextlib
import http.client
import json
import socket
import struct

import pytest

MASK = b"\x01\x02\x03\x04"


def masked(data: bytes) -> bytes:
    if not data:
        return b""
    pad = (MASK * (len(data) // 4 + 1))[:len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(pad, "big")).to_bytes(len(data), "big")


def frame(data: bytes, op: int = 1, fin: bool = True) -> bytes:
    first = bytes([(0x80 if fin else 0) | op])
    if len(data) < 126:
        size = bytes([0x80 | len(data)])
    elif len(data) < 65536:
        size = bytes([0x80 | 126]) + struct.pack(">H", len(data))
    else:
        size = bytes([0x80 | 127]) + struct.pack(">Q", len(data))
    return first + size + MASK + masked(data)


@pytest.fixture(scope="module")
def session(server):
    asking = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    asking.request("POST", "/pty/sessions", "{}")
    made = json.loads(asking.getresponse().read())
    asking.close()
    return made["session_id"]


class Socket:
    def __init__(self, server, session: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.pty_port), timeout=10)
        self.socket.sendall((f"GET /pty?session_id={session} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"
                             "Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                             "Sec-WebSocket-Version: 13\r\n\r\n").encode())
        self.rest = b""
        while b"\r\n\r\n" not in self.rest:
            self.rest += self.socket.recv(65536)
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101")

    def need(self, size: int) -> bytes:
        while len(self.rest) < size:
            piece = self.socket.recv(65536)
            if not piece:
                raise EOFError
            self.rest += piece
        data, self.rest = self.rest[:size], self.rest[size:]
        return data

    def frame(self):
        first, size = self.need(2)
        if size == 126:
            size = struct.unpack(">H", self.need(2))[0]
        elif size == 127:
            size = struct.unpack(">Q", self.need(8))[0]
        return first & 15, self.need(size)

    def close_code(self):
        """The code of the server's close frame, after which it ends the connection."""
        while True:
            op, data = self.frame()
            if op == 8:
                break
        with contextlib.suppress(ConnectionResetError):
            self.socket.shutdown(socket.SHUT_WR)
            assert self.socket.recv(1) == b""
        return struct.unpack(">H", data[:2])[0] if data else None


BROKEN = {
    "unmasked": (b"\x81\x05hello", 1002),
    "reserved_bit": (b"\xf1\x80" + MASK, 1002),
    "unknown_opcode": (b"\x83\x80" + MASK, 1002),
    "unknown_control_opcode": (b"\x8b\x80" + MASK, 1002),
    "continuation_of_nothing": (frame(b"x", op=0), 1002),
    "new_message_inside_a_message": (frame(b"a", fin=False) + frame(b"b"), 1002),
    "fragmented_ping": (frame(b"a", op=9, fin=False), 1002),
    "ping_over_125_bytes": (frame(b"a" * 200, op=9), 1002),
    "length_with_the_top_bit": (b"\x81\xff" + b"\xff" * 8 + MASK, 1002),
    "length_not_minimal": (b"\x81\xfe\x00\x05" + MASK + masked(b"hello"), 1002),
    "not_utf8": (frame(b"\xff\xfe"), 1007),
    "bad_close_code": (frame(struct.pack(">H", 999), op=8), 1002),
    "one_message_of_20_mib": (frame(b"a" * (20 << 20)), 1009),
    "endless_fragments": (frame(b"a" * 65536, fin=False) + frame(b"a" * 65536, op=0, fin=False) * 500, 1009),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_frames_end_with_a_code(server, session, name):
    data, code = BROKEN[name]
    one = Socket(server, session)
    one.socket.sendall(data)
    assert one.close_code() == code
    one.socket.close()
    again = Socket(server, session)
    again.socket.sendall(frame(struct.pack(">H", 1000) + b"bye", op=8))
    assert again.close_code() == 1000
    again.socket.close()


def test_malformed_messages_are_ignored(server, session):
    one = Socket(server, session)
    for text in (b"not json", b"[]", b'{"type":"input"}', b'{"type":5}', b'{"type":"resize","cols":"80","rows":1.5}'):
        one.socket.sendall(frame(text))
    one.socket.sendall(frame(b'{"type":"input","data":"echo st$((1))ll\\n"}'))
    seen = b""
    while b"st1ll" not in seen:
        seen += one.frame()[1]
    one.socket.close()


@pytest.mark.parametrize("key", ["", "x", "AAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAAAA",
                                 "!AAAAAAAAAAAAAAAAAAAAA=="])
def test_a_key_that_is_not_16_bytes_is_no_handshake(server, session, key):
    with contextlib.closing(socket.create_connection(("127.0.0.1", server.pty_port), timeout=10)) as asking:
        asking.sendall((f"GET /pty?session_id={session} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"
                        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        assert asking.recv(65536).split(b"\r\n")[0] == b"HTTP/1.1 400 Bad Request"
