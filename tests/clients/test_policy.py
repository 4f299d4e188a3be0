"""What a policy says of an endpoint is what its callers get, by every name."""

import http.client
import json

OFF = {"enabled": False}
REQUESTS = {"files_upload_stream": ("POST", "/files/upload-stream?path=a"), "files_upload": ("POST", "/upload?path=b"),
            "files_extract": ("POST", "/files/extract?path=c"), "files_download": ("GET", "/download?path=a"),
            "files_download_stream": ("GET", "/files/download-stream?path=a")}


def ask(server, method, path, body, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, path, body if method == "POST" else None, headers)
    text = connection.getresponse().read()
    connection.close()
    return text


def answers(server):
    """id -> (what /capabilities/check says, whether a request passes)."""
    found = {}
    for name, (method, path) in REQUESTS.items():
        said = json.loads(ask(server, "POST", "/capabilities/check", json.dumps({"endpoint": name})))["allowed"]
        got = ask(server, method, path, "x", **{"Content-Type": "application/octet-stream"})
        found[name] = said, b"endpoint_disabled" not in got
    return found


def test_a_rule_for_an_endpoint_that_belongs_to_another_holds(start):
    for off in ("files_extract", "files_upload", "files_download"):
        found = answers(start(policy={"endpoints": {off: OFF}}))
        assert {name for name, (said, got) in found.items() if not said} == {off}
        assert {name for name, (said, got) in found.items() if not got} == {off}


def test_a_rule_for_the_other_holds_for_those_that_belong_to_it(start):
    for off, those in (("files_upload_stream", {"files_upload", "files_extract"}), ("files_download_stream", {"files_download"})):
        found = answers(start(policy={"endpoints": {off: OFF}}))
        assert {name for name, (said, got) in found.items() if not said} == {off, *those}
        assert {name for name, (said, got) in found.items() if not got} == {off, *those}
