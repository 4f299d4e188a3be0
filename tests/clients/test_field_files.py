"""Files that are no files, named outright: they are left out of an archive, as those met while walking are."""

import base64
import io
import json
import os
import socket
import tarfile
import urllib.request

import pytest


@pytest.mark.parametrize("kind", ["socket", "fifo"])
def test_special_file_named_outright_is_left_out_of_the_archive(start, kind):
    server = start()
    special = os.path.join(server.base, "special")
    plain = os.path.join(server.base, "plain")
    if kind == "fifo":
        os.mkfifo(special)
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(special)
    with open(plain, "w") as out:
        out.write("x")
    body = json.dumps({"paths": [special, plain]}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/files/archive", body)
    with urllib.request.urlopen(request, timeout=10) as answer:
        packed = base64.b64decode(json.load(answer)["content_base64"])
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert archive.getnames() == ["plain"]
