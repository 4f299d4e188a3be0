"""Serves commands.so on a free port and calls it: `make check`. Needs Python 3 and nothing else."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
COMMANDS = os.environ.get("COMMANDS", os.path.join(HERE, "commands.so"))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.base = tempfile.TemporaryDirectory()
        cls.url = f"http://127.0.0.1:{(port := free_port())}"
        cls.server = subprocess.Popen(
            [os.environ.get("ABX_SERVER", "abx-server"), "serve", "--host", "127.0.0.1", "--port", str(port),
             "--pty-port", str(free_port()), "--base-dir", cls.base.name, "--commands", COMMANDS])
        for _ in range(200):
            try:
                urllib.request.urlopen(cls.url + "/health").close()
                return
            except OSError:
                if cls.server.poll() is not None:
                    break
                time.sleep(0.05)
        sys.exit("the server does not come up")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.server.terminate()
        cls.server.wait()
        cls.base.cleanup()

    def call(self, command: str, /, **arguments):
        """(status, body) of a command."""
        request = urllib.request.Request(f"{self.url}/commands/{command}", json.dumps(arguments).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def test_hello(self) -> None:
        self.assertEqual(self.call("hello", name="Ada"), (200, {"result": "Hello, Ada!"}))
        self.assertEqual(self.call("hello"), (200, {"result": "Hello, World!"}))

    def test_invite_takes_every_type(self) -> None:
        status, body = self.call("invite", guests=["Ada", "Alan", "Grace"], seats="2", price=1.5, formal="yes")
        self.assertEqual(status, 200)
        self.assertEqual(body["result"]["tables"], 2)
        self.assertEqual(body["result"]["cost"], 4.5)
        self.assertEqual(body["result"]["letters"][1], {"to": "Alan", "opening": "Dear guest"})
        self.assertIsNone(body["result"]["note"])

    def test_invite_refuses(self) -> None:
        self.assertEqual(self.call("invite")[0], 400)
        self.assertEqual(self.call("invite", guests="Ada")[0], 400)
        status, body = self.call("invite", guests=[], seats=0)
        self.assertEqual((status, body["type"]), (500, "ValueError"))

    def test_describe_runs_python(self) -> None:
        status, body = self.call("describe", text="so it goes, so it is", top=2)
        self.assertEqual((status, body["result"]), (200, {
            "words": 6, "lines": 1, "most": [{"word": "so", "times": 2}, {"word": "it", "times": 2}]}))

    def test_an_exception_of_python_is_the_error(self) -> None:
        status, body = self.call("describe", text="", top=0)
        self.assertEqual((status, body["type"], body["error"]), (500, "ValueError", "top must be at least 1"))

    def test_large_arguments_go_through(self) -> None:
        self.assertEqual(self.call("describe", text="word " * 100000)[1]["result"]["words"], 100000)

    def test_countdown_streams(self) -> None:
        with urllib.request.urlopen(self.url + "/countdown/2") as answer:
            self.assertEqual(answer.headers.get_content_type(), "text/event-stream")
            events = [line.split(":", 1)[1].strip() for line in answer.read().decode().splitlines()
                      if line.startswith("event:")]
        self.assertEqual(events, ["tick", "tick", "done"])
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(self.url + "/countdown/soon")
        self.assertEqual(refused.exception.code, 400)
        refused.exception.close()


if __name__ == "__main__":
    unittest.main()
