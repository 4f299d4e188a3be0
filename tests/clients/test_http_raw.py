"""HTTP/1.1 by the byte: framing that must be refused, odd but legal requests, pipelining, slow and silent peers.

A refusal is one JSON answer and a close; nothing behind a refused head is ever read as a request.
"""

import contextlib
import json
import socket
import time

import pytest

OK = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
EVIL = "GET /health HTTP/1.1\r\nHost: x\r\nX-Smuggled: 1\r\n\r\n"


def post(extra: str = "", body: str = "", path: str = "/capabilities/check") -> str:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{extra}\r\n{body}"


def get(extra: str = "") -> str:
    return f"GET /health HTTP/1.1\r\nHost: x\r\n{extra}\r\n"


def json_post(value, path: str, extra: str = "") -> str:
    body = json.dumps(value)
    return post(f"{extra}Content-Length: {len(body)}\r\n", body, path)


UPLOAD = "/upload?path=refused"
CHUNKS = "2\r\n{}\r\n0\r\n\r\n"

# name: (bytes sent, statuses that are right)
REFUSED = {
    "length_and_chunked": (post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n" + EVIL), {400}),
    "chunked_and_length": (post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n" + EVIL), {400}),
    "two_lengths": (post("Content-Length: 2\r\nContent-Length: 40\r\n", "{}" + EVIL), {400}),
    "lengths_that_only_mean_the_same": (post("Content-Length: 2\r\nContent-Length: 02\r\n", "{}" + EVIL), {400}),
    "three_lengths": (post("Content-Length: 2\r\nContent-Length: 2\r\nContent-Length: 40\r\n", "{}" + EVIL), {400}),
    "length_list": (post("Content-Length: 2, 2\r\n", "{}" + EVIL), {400}),
    "length_with_plus": (post("Content-Length: +2\r\n", "{}" + EVIL), {400}),
    "length_negative": (post("Content-Length: -1\r\n", "{}" + EVIL), {400}),
    "length_hex": (post("Content-Length: 0x2\r\n", "{}" + EVIL), {400}),
    "length_empty": (post("Content-Length: \r\n", EVIL), {400}),
    "length_words": (post("Content-Length: abc\r\n", "{}" + EVIL), {400}),
    "length_underscore": (post("Content-Length: 1_0\r\n", "{}" + EVIL), {400}),
    "length_beyond_64_bits": (post("Content-Length: 99999999999999999999\r\n", "{}" + EVIL), {413}),
    "length_of_get_is_bad": (get("Content-Length: x\r\n") + EVIL, {400}),
    "blank_before_colon": (post("Content-Length : 2\r\n", "{}" + EVIL), {400}),
    "blank_before_colon_of_coding": (post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n" + EVIL), {400}),
    "folded_header": (post("X-A: 1\r\n Content-Length: 2\r\n", "{}" + EVIL), {400}),
    "folded_with_tab": (post("X-A: 1\r\n\tb\r\n", "{}" + EVIL), {400}),
    "first_header_folded": ("GET /health HTTP/1.1\r\n X: y\r\nHost: x\r\n\r\n", {400}),
    "unknown_coding": (post("Transfer-Encoding: gzip\r\n", "{}" + EVIL), {400}),
    "coding_twice": (post("Transfer-Encoding: chunked\r\n" * 2, "0\r\n\r\n" + EVIL), {400}),
    "coding_list": (post("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n" + EVIL), {400}),
    "coding_with_tab": (post("Transfer-Encoding:\tchunked\r\nContent-Length: 2\r\n", "{}" + EVIL), {400}),
    "coding_in_http_1_0": ("POST /shell HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS + EVIL, {400}),
    "chunked_not_allowed_here": (post("Transfer-Encoding: chunked\r\n", CHUNKS + EVIL), {400}),
    "chunk_size_beyond_64_bits": (post("Transfer-Encoding: chunked\r\n", "10000000000000000\r\nabc\r\n" + EVIL, UPLOAD), {400}),
    "chunk_size_negative": (post("Transfer-Encoding: chunked\r\n", "-3\r\nabc\r\n0\r\n\r\n" + EVIL, UPLOAD), {400}),
    "chunk_size_no_number": (post("Transfer-Encoding: chunked\r\n", "zz\r\nabc\r\n0\r\n\r\n" + EVIL, UPLOAD), {400}),
    "chunk_longer_than_its_size": (post("Transfer-Encoding: chunked\r\n", "3\r\nabcX\r\n0\r\n\r\n" + EVIL, UPLOAD), {400}),
    "second_chunk_malformed": (post("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n-1\r\nabc\r\n" + EVIL, UPLOAD), {400}),
    "chunk_size_beyond_64_bits_in_archive":
        (post("Transfer-Encoding: chunked\r\n", "10000000000000000\r\nabc\r\n" + EVIL, "/files/extract?path=refused"), {400}),
    "nul_in_path": ("GET /hea\0lth HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "nul_in_header": (get("X-A: a\0b\r\n"), {400}),
    "control_in_header": (get("X-A: a\x01b\r\n"), {400}),
    "bare_cr_in_header": (get("X-A: a\rb\r\n"), {400}),
    "blank_in_path": ("GET /hea lth HTTP/1.1\r\nHost: x\r\n\r\n", {400, 505}),
    "non_ascii_path": ("GET /h\xe9 HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "no_version": ("GET /health\r\nHost: x\r\n\r\n", {400, 505}),
    "lower_case_version": ("GET /health http/1.1\r\nHost: x\r\n\r\n", {400, 505}),
    "http_2": ("GET /health HTTP/2.0\r\nHost: x\r\n\r\n", {505}),
    "http_2_preface": ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {505}),
    "http_0_9": ("GET /health HTTP/0.9\r\nHost: x\r\n\r\n", {400, 505}),
    "http_1_7": ("GET /health HTTP/1.7\r\nHost: x\r\n\r\n", {400, 505}),
    "lower_case_method": ("get /health HTTP/1.1\r\nHost: x\r\n\r\n", {400, 501}),
    "unknown_method": ("BREWED /health HTTP/1.1\r\nHost: x\r\n\r\n", {501}),
    "two_hosts": (get("Host: y\r\n"), {400}),
    "header_without_colon": (get("nonsense\r\n"), {400}),
    "header_without_name": (get(": v\r\n"), {400}),
    "odd_header_name": (get("X(A): v\r\n"), {400}),
    "tls_hello": ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", {400}),
    "garbage": ("\xff\xfe\xfd\r\n\r\n", {400}),
    "connect": ("CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n", {400, 405, 404, 501}),
    "target_without_slash": ("GET health HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "very_long_line": ("GET /health?" + "a" * 100000 + " HTTP/1.1\r\nHost: x\r\n\r\n", {414}),
    "very_long_header": (get("X-A: " + "a" * 100000 + "\r\n"), {431}),
    "megabyte_header": (get("X-A: " + "a" * (1 << 20) + "\r\n"), {431}),
    "five_hundred_headers": (get("X-A: b\r\n" * 500), {431}),
    "unknown_expectation": (post("Expect: tea\r\nContent-Length: 2\r\n"), {417}),
}


def refused(one, statuses) -> None:
    status, headers, body = one.answer()
    assert status in statuses, body
    assert headers["content-type"].startswith("application/json")
    answer = json.loads(body)
    assert answer["error"] and answer["type"]
    assert headers.get("connection") == "close"
    assert b"HTTP/1." not in one.read_all(), "a second answer"


@pytest.mark.parametrize("name", REFUSED)
def test_refused_once_in_json_and_nothing_after_it_is_read(raw, name):
    data, statuses = REFUSED[name]
    one = raw()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # cut while a huge head was still coming
        one.send(data)
    refused(one, statuses)


@pytest.mark.parametrize("name", [n for n in REFUSED if len(REFUSED[n][0]) < 1000])
def test_refused_the_same_when_it_comes_byte_by_byte(raw, name):
    data, statuses = REFUSED[name]
    one = raw()
    one.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for byte in data.encode("latin-1"):
            one.send(bytes([byte]))
    with contextlib.suppress(ConnectionResetError):
        refused(one, statuses)


ACCEPTED = {
    "plain": OK,
    "no_host": "GET /health HTTP/1.1\r\n\r\n",
    "lf_only": "GET /health HTTP/1.1\nHost: x\n\n",
    "http_1_0": "GET /health HTTP/1.0\r\n\r\n",
    "empty_lines_first": "\r\n\r\n" + OK,
    "absolute_form": "GET http://x:1/health HTTP/1.1\r\nHost: x\r\n\r\n",
    "leading_slashes": "GET ///health HTTP/1.1\r\nHost: x\r\n\r\n",
    "trailing_slashes": "GET /health// HTTP/1.1\r\nHost: x\r\n\r\n",
    "query_and_fragment": "GET /health?a=1#b HTTP/1.1\r\nHost: x\r\n\r\n",
    "parameters": "GET /health;v=1 HTTP/1.1\r\nHost: x\r\n\r\n",
    "leading_zeros": get("Content-Length: 0000\r\n"),
    "non_ascii_header_value": get("X-A: \xe9\r\n"),
    "blanks_around_value": get("X-A:   x  \r\n"),
    "many_headers": get("X-A: b\r\n" * 90),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_legal_if_odd(raw, name):
    one = raw()
    one.send(ACCEPTED[name])
    assert one.answer()[0] == 200


def test_pipelined_requests_are_answered_in_order(raw):
    one = raw()
    one.send((OK + json_post({"endpoint": "health"}, "/capabilities/check")) * 200)
    for _ in range(200):
        assert one.answer()[2] == b'{"status": "ok"}'
        assert json.loads(one.answer()[2])["endpoint"] == "health"


def test_pipelining_behind_a_slow_request(raw):
    one = raw()
    one.send(json_post({"command": "sleep 0.2"}, "/shell") + OK + OK)
    assert json.loads(one.answer()[2])["exit_code"] == 0
    assert [one.answer()[0], one.answer()[0]] == [200, 200]


def test_head_is_get_without_the_body(raw):
    one = raw()
    one.send(OK.replace("GET", "HEAD") + OK)
    status, headers, _ = one.answer(head_only=True)
    assert status == 200 and headers["content-length"] == "16"
    assert one.answer()[2] == b'{"status": "ok"}'


def test_options_tells_what_is_allowed(raw):
    one = raw()
    one.send("OPTIONS /health HTTP/1.1\r\nHost: x\r\n\r\nOPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")
    status, headers, _ = one.answer()
    assert status == 204 and {"GET", "HEAD", "OPTIONS"} <= set(headers["allow"].split(", "))
    assert one.answer()[0] == 204


def test_wrong_method_names_the_right_ones(raw):
    one = raw()
    one.send("PUT /health HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    status, headers, body = one.answer()
    assert status == 405 and "GET" in headers["allow"]
    assert json.loads(body)["code"] == "method_not_allowed"


def test_a_body_on_get_is_read_away(raw):
    one = raw()
    one.send(get(f"Content-Length: {len(EVIL)}\r\n") + EVIL + OK)
    assert [one.answer()[0], one.answer()[0]] == [200, 200]
    one.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        one.socket.recv(1)


def test_a_length_that_is_given_twice_is_one_length(raw):
    one = raw()
    body = '{"endpoint": "health"}'
    one.send(post(f"Content-Length: {len(body)}\r\ncontent-length:\t{len(body)} \r\n", body) + OK)
    assert json.loads(one.answer()[2])["endpoint"] == "health"
    assert one.answer()[2] == b'{"status": "ok"}'


def test_an_endless_body_of_get_is_not_waited_for(raw):
    one = raw()
    one.send(get("Content-Length: 99999999999999999999\r\n") + EVIL)
    assert one.answer()[2] == b'{"status": "ok"}'
    assert b"HTTP/1." not in one.read_all()


def test_refused_bodies_on_a_kept_connection_are_never_requests(start, connect):
    one = connect(start(env={"ABX_SERVER_TOKEN": "t"}))
    for path, status in (("/nope", 404), ("/shell", 401)):
        one.send(post(f"Content-Length: {len(EVIL)}\r\n", EVIL, path))
        assert one.answer()[0] == status
    one.send(OK)
    assert one.answer()[2] == b'{"status": "ok"}'
    one.send(post("X-Access-Token: t\r\nContent-Length: 20000000\r\n", EVIL, "/shell"))
    status, headers, body = one.answer()
    assert status == 413 and json.loads(body)["limit"] == 10485760
    assert headers["connection"] == "close"
    assert b"HTTP/1." not in one.read_all()


def test_continue_comes_after_admission_only(raw, start, connect):
    one = raw()
    body = json.dumps({"endpoint": "health"})
    one.send(post(f"Expect: 100-continue\r\nContent-Length: {len(body)}\r\n"))
    assert one.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 100")
    one.send(body)
    assert one.answer()[0] == 200
    strict = connect(start(env={"ABX_SERVER_TOKEN": "t"}))
    strict.send(post("Expect: 100-continue\r\nContent-Length: 5\r\n", path="/shell"))
    assert strict.answer()[0] == 401
    assert strict.read_all() == b""


def test_http_1_0_closes_unless_asked_to_stay(raw):
    one = raw()
    one.send("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    status, headers, _ = one.answer()
    assert status == 200 and headers["connection"] == "keep-alive"
    one.send("GET /health HTTP/1.0\r\n\r\n")
    assert one.answer()[0] == 200
    assert one.read_all() == b""


def test_connection_close_is_kept(raw):
    one = raw()
    one.send(get("Connection: close\r\n") + OK)
    assert one.answer()[0] == 200
    assert one.read_all() == b""


def test_a_body_cut_short_is_an_error_even_when_it_parses(raw):
    one = raw()
    one.send(post("Content-Length: 100\r\n", '{"endpoint": "health"}'))
    one.socket.shutdown(socket.SHUT_WR)
    status, _, body = one.answer()
    assert status == 400 and json.loads(body)["type"] == "ValueError"


def test_a_client_that_only_closed_its_sending_side_gets_its_answer(raw):
    one = raw()
    one.send(OK)
    one.socket.shutdown(socket.SHUT_WR)
    assert one.answer()[0] == 200


def test_a_client_that_left_before_its_stream_began_ends_it(raw):
    """A watch is opened on a worker; its descriptors must not wait for a heartbeat that finds nobody (15 s and more)."""
    for _ in range(10):
        one = raw()
        one.send("GET /files/watch?path=. HTTP/1.1\r\nHost: x\r\n\r\n")
        one.socket.shutdown(socket.SHUT_WR)
        assert b"event: end" not in one.read_all()  # within the socket's 10 s


def test_idle_and_dribbling_connections_do_not_slow_others(server, raw):
    idle = [raw() for _ in range(300)]
    for number, one in enumerate(idle):
        one.send("GET /hea" if number % 2 else post("Content-Length: 50\r\n", "{"))
    began = time.monotonic()
    for _ in range(50):
        fresh = raw()
        fresh.send(OK)
        assert fresh.answer()[0] == 200
    assert time.monotonic() - began < 5
    assert server.alive()


def test_foreign_origins_are_refused_without_tokens(raw):
    def ask(header):
        one = raw()
        one.send(f"GET /system/info HTTP/1.1\r\nHost: 127.0.0.1:9\r\n{header}\r\n\r\n")
        status, _, body = one.answer()
        return status, json.loads(body).get("code")

    for header in ("Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site"):
        assert ask(header) == (403, "origin_denied")
    for header in ("Origin: http://127.0.0.1:9", "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: none"):
        assert ask(header) == (200, None)


def test_preflight_never_reaches_a_handler(raw):
    one = raw()
    one.send("OPTIONS /shell HTTP/1.1\r\nHost: x\r\nOrigin: http://evil.example\r\n"
             "Access-Control-Request-Method: POST\r\n\r\n")
    assert one.answer()[0] == 403


def test_listed_origins_get_cors_headers(start, connect):
    one = connect(start(policy={"auth": {"allowed_origins": ["https://app.example"]}}, env={"ABX_SERVER_TOKEN": "t"}))
    one.send("OPTIONS /shell HTTP/1.1\r\nHost: x\r\nOrigin: https://app.example\r\n"
             "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x-access-token\r\n\r\n")
    status, headers, _ = one.answer()
    assert status == 204
    assert headers["access-control-allow-origin"] == "https://app.example"
    assert headers["access-control-allow-headers"] == "x-access-token"
    one.send(post("Origin: https://app.example\r\nContent-Length: 2\r\n", "{}", "/shell"))
    status, headers, _ = one.answer()
    assert status == 401 and headers["access-control-allow-origin"] == "https://app.example"
    assert headers["www-authenticate"] == "Bearer"


def test_hosts_can_be_restricted(start, connect):
    one = connect(start(policy={"auth": {"allowed_hosts": ["box.example", "127.0.0.1"]}}))
    one.send("GET /capabilities HTTP/1.1\r\nHost: Box.Example:9000\r\n\r\n")
    assert one.answer()[0] == 200
    one.send("GET /capabilities HTTP/1.1\r\nHost: rebound.example\r\n\r\n")
    status, _, body = one.answer()
    assert status == 403 and json.loads(body)["code"] == "host_denied"


HOSTILE = {"deep_arrays": "[" * 100000, "deep_objects": '{"a":' * 100000,
           "many_values": "[" + "{}," * 200000 + "1]", "giant_number": '{"n":' + "9" * 1000000 + "}"}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_is_refused_in_bounded_time(raw, name):
    one = raw()
    body = HOSTILE[name]
    began = time.monotonic()
    one.send(post(f"Content-Length: {len(body)}\r\n", body))
    status, _, answer = one.answer()
    assert status == 400 and json.loads(answer)["code"] == "bad_body"
    assert time.monotonic() - began < 5


SPELLINGS = ["//shell", "/./shell", "/%73hell", "/health/../shell", "/shell;x", "/SHELL", "/health%2f..%2fshell",
             "http://x/shell"]


def test_odd_spellings_never_run_without_the_token(start, connect):
    server = start(env={"ABX_SERVER_TOKEN": "t"})
    for spelling in SPELLINGS:
        one = connect(server)
        one.send(json_post({"command": "true"}, spelling))
        assert one.answer()[0] in (401, 404), spelling


def test_sigterm_with_open_connections_ends_cleanly(start, connect):
    server = start()
    idle = [connect(server) for _ in range(20)]
    half = connect(server)
    half.send(post("Content-Length: 1000\r\n", "{"))
    stream = connect(server)
    stream.send(json_post({"command": "sleep 30"}, "/shell/stream"))
    stream.read_until(b"\r\n\r\n")
    began = time.monotonic()
    assert server.terminate(timeout=6) == 0
    assert time.monotonic() - began < 5
    assert stream.read_all().endswith(b"0\r\n\r\n"), "the stream ends properly"
    assert idle[0].read_all() == b""


def test_ipv6_and_ipv4_on_one_port(start):
    server = start(flags=["--host", "::"])
    for address in ("::1", "127.0.0.1"):
        with socket.create_connection((address, server.port), timeout=5) as one:
            one.sendall(OK.encode())
            assert one.recv(100).startswith(b"HTTP/1.1 200")
