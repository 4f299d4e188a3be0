"""Clients that hang up while a worker still parses what they sent. Server binary: ABX_SERVER; ports: ABX_CONF_PORTS."""

import json
import socket
import threading
import time

import pytest

from test_process import Server

FILLER = 1_000_000  # of blanks: a body over 64 KiB is parsed on a worker


@pytest.mark.parametrize("path, body, policy", [
    ("/shell", {"command": "nosuch"}, None),
    ("/shell/stream", {"command": "true"}, None),
    ("/process/start", {"command": "nosuch"}, None),
    ("/code/run", {"code": "1", "language": "nosuch"}, None),
    ("/commands/runshell", {"cmd": "true"}, {"endpoints": {"shell": {"params": {"allow_commands": ["echo"]}}}}),
])
def test_who_hangs_up_during_the_parsing_harms_nobody(tmp_path, path, body, policy):
    env = {"ABX_SERVER_ENABLED_GROUPS": "dev_tools"}
    if policy:
        env["ABX_SERVER_POLICY"] = json.dumps(policy)
    server = Server(tmp_path, env=env)
    text = json.dumps(body)[:-1] + " " * FILLER + "}"
    request = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()

    def hang_up(turn):
        for i in range(60):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
                s.sendall(request)
                time.sleep((turn + i) % 7 / 2000)  # at another moment each time

    try:
        threads = [threading.Thread(target=hang_up, args=(turn,)) for turn in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert server.get("/health")[0] == 200
        server.settle(lambda: not server.children() or path == "/commands/runshell")
        assert server.stop() == 0
    finally:
        server.process.kill()
