"""The browser endpoints against a real Chromium, with pages served here.

    ABX_SERVER=build/server/abx-server python -m pytest tests/clients/test_browser.py

Needs pytest and an installed Chromium; the last tests also need playwright (no bundled browser). What is
missing is skipped. Ports: ABX_CONF_PORTS (default 20200-20299).
"""
import asyncio
import base64
import concurrent.futures
import http.server
import ipaddress
import json
import os
import pathlib
import shutil
import signal
import socket
import socketserver
import statistics
import struct
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVER = pathlib.Path(os.environ.get("ABX_SERVER", ROOT / "build/server/abx-server")).resolve()
LOW, HIGH = (int(p) for p in os.environ.get("ABX_CONF_PORTS", "20200-20299").split("-"))
SITE = HIGH
DEAD = HIGH - 1  # nothing listens here
PORT = LOW
CHROMIUM = os.environ.get("ABX_BROWSER_PATH") or shutil.which("chromium") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.skipif(not SERVER.exists(), reason="no server is built"),
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed"),
]

PAGES = {
    "/": """<title>T1</title><h1>Hello</h1><button id=b onclick="console.log('hello',{a:1},[1,2])">B</button>
            <input id=i value=old><a id=l href="/two">two</a><p id=hidden style="display:none">gone</p>""",
    "/two": "<title>Two</title><p>second</p>",
    "/static": "<title>Static</title><p>nothing moves</p>",
    "/dialogs": "<title>Dialogs</title><script>alert(1);confirm(2);prompt(3)</script>after",
    "/poll": "<title>Poll</title><script>setInterval(()=>fetch('/two'),200)</script>",
    "/hanging": "<title>Hanging</title><img src='/never'>",
    "/tall": "<title>Tall</title><body style='margin:0'><div style='height:20000px;background:"
             "linear-gradient(red,blue)'></div>",
    "/frames": """<title>Frames</title><iframe src="/" width=500 height=300></iframe><div id=host></div><script>
                  host.attachShadow({mode:'open'}).innerHTML="<button id=s onclick='window.hit=1'>Shadow</button>"
                  </script>""",
    "/popups": """<title>Popups</title><script>for(let i=0;i<50;i++)window.open('/two')</script>
                  <a id=t target=_blank href="/two">new</a>""",
    "/closes": "<title>Closes</title><button id=c onclick='window.close()'>close</button>",
    "/covered": """<button id=x>x</button><div id=cover style="position:fixed;inset:0;background:#eee"></div>""",
    "/replaced": """<div id=r></div><script>setInterval(()=>{r.innerHTML='<button id=rb onclick="window.n=1">r'
                    +'</button>'},50)</script>""",
    "/below": """<div style="height:5000px"></div><button id=low onclick="window.n=1">low</button>""",
    "/endless": "<title>Endless</title><script>while(true){}</script>",
    "/late": "<title>Late</title><script>setTimeout(()=>{document.body.innerHTML='<p id=p>come</p>'},300)</script>",
    "/form": """<title>Form</title><form action="/two"><input id=q name=q><input type=checkbox id=k>
                <select id=s><option>a<option>b</select></form>""",
    "/errors": "<title>Errors</title><script>setTimeout(()=>{throw new Error('boom')},0)</script><img src='/no.png'>",
    "/many": "<script>for(let i=0;i<1500;i++)console.log('n'+i)</script>",
    "/editable": "<div id=e contenteditable>old</div><input id=ro readonly value=fix>",
    "/fields": """<title>Fields</title><input id=a value=keep><input id=k type=checkbox value=v><select id=s><option>o</select>
                  <label id=lb for=a>a</label><p id=p>text</p><textarea id=ta></textarea><input id=d type=date value=2020-01-02>
                  <input id=n type=number value=12><input id=c type=color value="#ff0000"><input id=away onfocus="a.focus()">
                  <script>onkeydown = e => { window.at = e.target.localName + ':' + e.key }</script>""",
    "/print": """<title>Print</title><button id=b onclick="print()">p</button><iframe srcdoc="<script>top.print()</script>">
                 </iframe><script>print()</script>""",
    "/box": """<body style="margin:0"><div id=box style="position:absolute;left:10.5px;top:3.25px;width:20.5px;height:8px">
               </div>""",
    "/noise": """<title>Noise</title><body style="margin:0"><canvas id=c width=2600 height=2600></canvas><script>
                 const g=c.getContext('2d'),d=g.createImageData(2600,2600);
                 for(let i=0;i<d.data.length;i+=65536)crypto.getRandomValues(d.data.subarray(i,i+65536));
                 for(let i=3;i<d.data.length;i+=4)d.data[i]=255;g.putImageData(d,0,0)</script>""",
}


class Site(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        if path in ("/r3", "/r2", "/r1"):
            self.answer(302, Location={"/r3": "/r2", "/r2": "/r1", "/r1": "/two"}[path])
        elif path == "/to-dead":
            self.answer(302, Location=f"http://127.0.0.1:{DEAD}/")
        elif path == "/204":
            self.send_response(204)
            self.end_headers()
        elif path == "/500":
            self.answer(500, b"<title>broken</title>", Content_Type="text/html")
        elif path == "/cached":
            self.answer(200, b"<title>Cached</title>", Content_Type="text/html", Cache_Control="max-age=3600")
        elif path == "/download":
            self.answer(200, b"abc", Content_Disposition="attachment; filename=x.bin")
        elif path == "/never":
            time.sleep(15)
        elif path == "/big":
            self.answer(200, b"<title>Big</title><script type=text/plain>" + b"x" * (20 << 20) + b"</script>", Content_Type="text/html")
        elif path in PAGES:
            self.answer(200, PAGES[path].encode(), Content_Type="text/html; charset=utf-8")
        else:
            self.answer(404, b"<title>nf</title>not here", Content_Type="text/html")


class Threads(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        pass  # a browser that went away


@pytest.fixture(scope="session")
def site():
    server = Threads(("127.0.0.1", SITE), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{SITE}"
    server.shutdown()


class Server:
    """A server of ours; env and params are those of the test."""

    def __init__(self, port, params=None, env=None, token=None):
        self.port = port
        self.token = token
        self.tmp = tempfile.mkdtemp(prefix="abx-test-")
        self.env = {"PATH": os.environ["PATH"], "HOME": self.tmp, "TMPDIR": self.tmp, "LANG": "C.UTF-8"}
        if "ABX_BROWSER_PATH" in os.environ:
            self.env["ABX_BROWSER_PATH"] = os.environ["ABX_BROWSER_PATH"]
        self.env.update(env or {})
        if token:
            self.env["ABX_SERVER_TOKEN"] = token
        policy = {"groups": ["browser"], "endpoints": {"browser_navigate": {"params": params or {}}}}
        self.policy = os.path.join(self.tmp, "policy.json")
        pathlib.Path(self.policy).write_text(json.dumps(policy))
        self.start()

    def start(self):
        self.log = open(os.path.join(self.tmp, "log"), "ab")
        self.process = subprocess.Popen(
            [str(SERVER), "serve", "--host", "127.0.0.1", "--port", str(self.port), "--pty-port",
             str(self.port + 1), "--base-dir", self.tmp, "--policy", self.policy],
            env=self.env, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        for _ in range(200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2).read()
                return
            except OSError:
                time.sleep(0.02)
        raise AssertionError("the server does not come up")

    def call(self, method, path, body=None, timeout=60, headers=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, method=method,
                                         headers=headers or {})
        if self.token:
            request.add_header("X-Access-Token", self.token)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as r:
                return r.status, json.load(r)
        except urllib.error.HTTPError as e:
            return e.code, json.load(e)

    def post(self, name, **body):
        return self.call("POST", f"/browser/{name}", body)

    def get(self, name):
        return self.call("GET", f"/browser/{name}")

    def ok(self, name, **body):
        status, answer = self.post(name, **body)
        assert status == 200, answer
        return answer

    def js(self, script, **more):
        return self.ok("evaluate", script=script, **more)["result"]

    def browsers(self):
        """Processes of Chromium that use a profile of this server."""
        return of_profile(self.tmp)

    def stop(self):
        self.process.terminate()
        code = self.process.wait(10)
        self.log.close()
        return code

    def close(self):
        if self.process.poll() is None:
            self.stop()
        shutil.rmtree(self.tmp, ignore_errors=True)


def of_profile(tmp):
    found = []
    for p in pathlib.Path("/proc").iterdir():
        if p.name.isdigit():
            try:
                line = (p / "cmdline").read_bytes()
                state = (p / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if state != "Z" and f"{tmp}/abx-browser".encode() in line:
                found.append(int(p.name))
    return found


def wait_until(check, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if check():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture(scope="module")
def server(site):
    s = Server(PORT, {"allow_private": True})
    yield s
    s.close()


@pytest.fixture
def fresh(site):
    made = []

    def make(**options):
        made.append(Server(PORT + 10 + 2 * len(made), **options))
        return made[-1]

    yield make
    for s in made:
        s.close()


# --- navigating ----------------------------------------------------------------------------------


def test_first_call_is_quick(fresh, site):
    s = fresh(params={"allow_private": True})
    times = []
    for _ in range(3):
        start = time.monotonic()
        assert s.ok("navigate", url=site + "/static", wait_until="load")["status"] == 200
        times.append(time.monotonic() - start)
        if times[-1] < 15:  # 0.7 s when nothing else runs
            return
        s.stop()
        s.start()
    raise AssertionError(times)


@pytest.mark.parametrize("path,title,status,end", [
    ("/", "T1", 200, "/"), ("/r3", "Two", 200, "/two"), ("/500", "broken", 500, "/500"),
    ("/nothere", "nf", 404, "/nothere"), ("/cached", "Cached", 200, "/cached"), ("/cached", "Cached", 200, "/cached"),
])
def test_navigation_ends_by_itself(server, site, path, title, status, end):
    page = server.ok("navigate", url=site + path, wait_until="load")
    assert page == {"url": site + end, "title": title, "status": status}
    assert title in server.get("content")[1]["content"]


def test_content_as_text_in_any_case(server, site):
    server.ok("navigate", url=site + "/two", wait_until="load")
    for kind in ("text", "TEXT", "Text"):
        assert server.call("GET", f"/browser/content?type={kind}")[1]["content"] == "second"
    for kind in ("html", "HTML", "pdf", ""):
        assert "<p>second</p>" in server.call("GET", f"/browser/content?type={kind}")[1]["content"]


def test_same_document_and_empty_answers(server, site):
    server.ok("navigate", url=site + "/two", wait_until="load")
    assert server.ok("navigate", url=site + "/two#x")["status"] == 0
    page = server.ok("navigate", url=site + "/204")
    assert page["status"] == 204 and page["url"] == site + "/two#x"


def test_wait_until(server, site):
    for until in ("commit", "domcontentloaded", "load", "networkidle"):
        assert server.ok("navigate", url=site + "/", wait_until=until)["status"] == 200
    status, answer = server.post("navigate", url=site + "/", wait_until="never")
    assert (status, answer["type"]) == (500, "Error")


def test_a_page_without_scripts_is_idle_at_once(server, site):
    server.ok("navigate", url=site + "/two", wait_until="load")
    start = time.monotonic()
    server.ok("navigate", url=site + "/static")
    assert time.monotonic() - start < 5


def test_a_polling_page_never_idles_but_stays_usable(server, site):
    start = time.monotonic()
    status, answer = server.post("navigate", url=site + "/poll", timeout=1500)
    assert (status, answer["type"]) == (500, "TimeoutError")
    assert 1.4 < time.monotonic() - start < 10
    assert server.js("document.title") == "Poll"
    assert server.ok("navigate", url=site + "/poll", wait_until="load")["status"] == 200


def test_a_hanging_image(server, site):
    assert server.ok("navigate", url=site + "/hanging", wait_until="domcontentloaded")["status"] == 200
    status, answer = server.post("navigate", url=site + "/hanging", wait_until="load", timeout=800)
    assert (status, answer["type"]) == (500, "TimeoutError")
    assert server.js("1+1") == 2


def test_failures_name_their_reason(server, site):
    for url, text in ((f"http://127.0.0.1:{DEAD}/", "ERR_CONNECTION_REFUSED"), ("http://nx.invalid/", "ERR_NAME_NOT"),
                      ("http://127.0.0.1:1/", "ERR_UNSAFE_PORT"), (site + "/download", "download")):
        status, answer = server.post("navigate", url=url)
        assert (status, answer["type"]) == (500, "Error") and text in answer["error"]
        assert answer["error"].startswith("Page.goto: ")


# --- guard ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["http://127.1/", "http://2130706433/", "http://0x7f.1/", "http://[::1]/",
                                 "http://[::ffff:127.0.0.1]/", "http://localhost./", "http://100.64.0.1/"])
def test_private_hosts_are_denied_in_every_spelling(fresh, url):
    status, answer = fresh().post("navigate", url=url)
    assert (status, answer["code"]) == (403, "url_denied")


def test_only_listed_loopback_ports_are_reached(fresh, site):
    s = fresh(params={"loopback_ports": [str(SITE)]})
    assert s.ok("navigate", url=site + "/two", wait_until="load")["title"] == "Two"
    status, answer = s.post("navigate", url=f"http://127.0.0.1:{DEAD}/")
    assert (status, answer["code"]) == (403, "url_denied")
    status, answer = s.post("navigate", url=site + "/to-dead", wait_until="load")
    assert (status, answer["code"]) == (403, "url_denied")
    s.ok("navigate", url=site + "/two", wait_until="load")
    for script in (f"fetch('http://127.0.0.1:{PORT}/health',{{mode:'no-cors'}}).then(()=>'reached',()=>'refused')",
                   f"new Promise(d=>{{const w=new WebSocket('ws://127.0.0.1:{PORT}/');w.onopen=()=>d('reached');"
                   "w.onerror=()=>d('refused')})",
                   "new Promise(d=>{const w=new Worker(URL.createObjectURL(new Blob([`fetch('http://127.0.0.1:"
                   f"{PORT}/health',{{mode:'no-cors'}}).then(()=>postMessage('reached'),()=>postMessage('refused'))"
                   "`])));w.onmessage=e=>d(e.data)})"):
        assert s.js(script) == "refused"


def test_web_rtc_does_not_go_around_the_guard(fresh, site):
    s = fresh(params={"loopback_ports": [str(SITE)]})
    s.ok("navigate", url=site + "/static", wait_until="load")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.socket() as tcp:
        for sock in (udp, tcp):
            sock.bind(("127.0.0.1", HIGH - 3))
            sock.setblocking(False)
        tcp.listen()
        # Gathering ends when every address of these servers has been tried.
        _, answer = s.post("evaluate", script=f"""turn = {{username: 'u', credential: 'c'}};
            peer = new RTCPeerConnection({{iceServers: [{{urls: 'stun:127.0.0.1:{HIGH - 3}'}},
                {{urls: 'turn:127.0.0.1:{HIGH - 3}', ...turn}},
                {{urls: 'turn:127.0.0.1:{HIGH - 3}?transport=tcp', ...turn}}]}});
            peer.createDataChannel('x');
            new Promise(done => {{
                peer.onicegatheringstatechange = () => peer.iceGatheringState === 'complete' && done('complete');
                peer.createOffer().then(offer => peer.setLocalDescription(offer));
            }})""", timeout=8000)
        for receive in (lambda: udp.recv(100), tcp.accept):
            with pytest.raises(BlockingIOError):
                receive()
        assert answer == {"result": "complete"}


def test_url_rules_hold_for_everything_a_page_loads(fresh, site):
    s = fresh(params={"url_allow": [site + "/*"], "url_deny": ["*/two*"], "loopback_ports": [str(SITE)]})
    assert s.ok("navigate", url=site + "/", wait_until="load")["title"] == "T1"
    assert s.post("navigate", url=site + "/two")[1]["code"] == "url_not_allowed"
    assert s.post("navigate", url=site + "/r3", wait_until="load")[1]["code"] == "url_not_allowed"
    s.ok("navigate", url=site + "/", wait_until="load")
    assert s.js("fetch('/two').then(()=>'reached',()=>'refused')") == "refused"
    assert s.js("fetch('/static').then(()=>'reached',()=>'refused')") == "reached"


def test_local_files_and_inner_pages_stay_shut(fresh):
    s = fresh()
    for url in ("file:///etc/passwd", "chrome://version", "view-source:file:///etc/passwd"):
        s.js(f"location.href='{url}'; 1")
        s.js(f"window.open('{url}'); 1")
        s.js(f"document.body.innerHTML='<iframe src=\"{url}\"></iframe>'; new Promise(r=>setTimeout(r,200,1))")
        content = s.get("content")[1]
        assert content["url"] == "about:blank" and "root:" not in content["content"]


def own_name():
    """A name of this machine that is not spelled as a loopback one, and whose address is private; or None."""
    name = socket.gethostname()
    try:
        address = ipaddress.ip_address(socket.gethostbyname(name))
    except OSError:
        return None
    return name if address.is_private and "localhost" not in name else None


@pytest.mark.skipif(not own_name(), reason="this machine's name has no private address")
@pytest.mark.parametrize("rules,code", [({}, "url_denied"), ({"loopback_ports": ["3000"]}, "url_denied"),
                                        ({"block_private_networks": True}, "url_not_allowed")])
@pytest.mark.parametrize("env", [{}, {"http_proxy": f"http://127.0.0.1:{DEAD}"}])
def test_names_of_private_addresses_are_denied(fresh, site, rules, code, env):
    status, answer = fresh(params=rules, env=env).post("navigate", url=f"http://{own_name()}:{SITE}/two")
    assert (status, answer.get("code")) == (403, code), answer


@pytest.mark.parametrize("way", ["proxy", "remote"])
def test_without_a_proxy_of_its_own_requests_are_judged_one_by_one(fresh, site, way):
    browser = None
    if way == "proxy":
        env = {"http_proxy": f"http://127.0.0.1:{DEAD}"}
    else:
        profile = tempfile.mkdtemp(prefix="abx-test-")
        port = HIGH - 2
        browser = subprocess.Popen([CHROMIUM, "--headless=new", "--no-sandbox", f"--user-data-dir={profile}",
                                    f"--remote-debugging-port={port}", "--no-first-run", "about:blank"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        assert wait_until(lambda: subprocess.run(["curl", "-sf", f"http://127.0.0.1:{port}/json/version"],
                                                 stdout=subprocess.DEVNULL).returncode == 0, 20)
        env = {"ABX_BROWSER_CDP_URL": f"http://127.0.0.1:{port}"}
    try:
        s = fresh(params={"loopback_ports": [str(SITE)]}, env=env)
        assert s.ok("navigate", url=site + "/two", wait_until="load")["title"] == "Two"
        assert s.post("navigate", url=site + "/to-dead", wait_until="load")[1]["code"] == "url_denied"
        s.ok("navigate", url=site + "/two", wait_until="load")
        assert s.js(f"fetch('http://127.0.0.1:{PORT}/health',{{mode:'no-cors'}}).then(()=>'reached',()=>'refused')") \
            == "refused"
        assert s.js("'x'.repeat(3<<20).length") == 3 << 20 and len(s.js("'x'.repeat(3<<20)")) == 3 << 20
        s.ok("screenshot")
        s.stop()
    finally:
        if browser:
            os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()
            shutil.rmtree(profile, ignore_errors=True)


# --- evaluate ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("script,value", [
    ("NaN", None), ("1/0", None), ("1n", 1), ("10n**30n", str(10**30)), ("undefined", None), ("null", None),
    ("window", "ref: <Window>"), ("document.body", "ref: <Node>"), ("new Date(0)", "1970-01-01 00:00:00+00:00"),
    ("new Date(1500)", "1970-01-01 00:00:01.500000+00:00"), ("Promise.resolve(5)", 5), ("await Promise.resolve(6)", 6),
    ("/x/g", "/x/g"), ("new Error('e')", "e"), ("new Map([[1,2]])", {}), ("new Uint8Array([1,2])", [1, 2]),
    ("Symbol()", None), ("'\\ud800'", "\ufffd"), ("a={};a.a=a;a", {"a": "[Circular]"}), ("() => 7", 7),
    ("function f() { return 8 }", 8), ("async () => ({a: [1, {b: null}]})", {"a": [1, {"b": None}]}),
    ("var t = 1; t + 1", 2), ("({a: undefined, f(){}})", {"a": None, "f": None}), ("const q = 1; q", 1),
    ("const q = 2; q", 2), ("'x\\0y'", "x\0y"), ("0.1", 0.1), ("2**70", 2.0**70), ("new URL('http://a/')", "http://a/"),
])
def test_values_follow_the_documented_rule(server, site, script, value):
    if script in ("NaN", "a={};a.a=a;a"):
        server.ok("navigate", url=site + "/static", wait_until="load")
    assert server.js(script) == value


def test_throws_and_rejections_are_errors(server):
    for script, text in (("throw new Error('xyz')", "xyz"), ("Promise.reject(new Error('rej'))", "rej"),
                         ("Promise.reject(1)", "1"), ("not valid js", "SyntaxError")):
        status, answer = server.post("evaluate", script=script)
        assert (status, answer["type"]) == (500, "Error") and text in answer["error"]
        assert answer["error"].startswith("Page.evaluate: ")


@pytest.mark.parametrize("script", ["while(true){}", "new Promise(()=>{})",
                                    "new Promise(()=>setTimeout(()=>{while(true);},10))"])
def test_deadlines_hold(server, script):
    start = time.monotonic()
    status, answer = server.post("evaluate", script=script, timeout=400)
    assert (status, answer["type"]) == (500, "TimeoutError")
    assert time.monotonic() - start < 10
    assert server.js("1+1") == 2


def test_a_page_that_never_rests_is_replaced(server, site):
    server.ok("navigate", url=site + "/", wait_until="load")
    server.post("evaluate", script="setInterval(()=>{while(true);},0);1")
    server.post("content", timeout=1)
    status, answer = server.post("evaluate", script="1", timeout=400)
    assert (status, answer["type"]) == (500, "TimeoutError")
    assert server.js("1+1") == 2
    status, answer = server.post("navigate", url=site + "/endless", timeout=700)
    assert (status, answer["type"]) == (500, "TimeoutError")
    assert server.get("console")[0] == 200
    assert server.js("1+1") == 2


def test_tens_of_megabytes(server, site):
    assert server.js("'x'.repeat(20<<20)") == "x" * (20 << 20)
    assert server.js("'" + "y" * (3 << 20) + "'.length") == 3 << 20
    server.ok("navigate", url=site + "/big", wait_until="load")
    assert len(server.get("content")[1]["content"]) > 20 << 20
    for mib in (97, 200):
        status, answer = server.post("evaluate", script=f"'x'.repeat({mib}<<20)", timeout=50000)
        assert (status, answer.get("code")) == (413, "payload_too_large")
    assert server.js("1+1") == 2


# --- acting -------------------------------------------------------------------------------------------


def test_click_and_console(server, site):
    server.ok("navigate", url=site + "/", wait_until="load")
    server.get("console")
    assert server.ok("click", selector="#b") == {"clicked": True, "selector": "#b"}
    logs = server.get("console")[1]["logs"]
    assert [(line["type"], line["text"]) for line in logs] == [("log", "hello {a: 1} [1, 2]")]
    assert abs(logs[0]["timestamp"] - time.time()) < 10
    assert server.get("console")[1]["logs"] == []


def test_click_waits_for_the_page_it_leads_to(server, site):
    server.ok("navigate", url=site + "/", wait_until="load")
    for selector in ("#l", "text=two", "xpath=//a", "a >> text=two", "a:has-text('two')"):
        server.ok("navigate", url=site + "/", wait_until="load")
        server.ok("click", selector=selector)
        assert server.call("GET", "/browser/content?type=text")[1]["content"] == "second"


@pytest.mark.parametrize("path,selector,text", [
    ("/", "#none", "no element"), ("/", "#hidden", "not visible"), ("/covered", "#x", 'covered by <div id="cover">'),
])
def test_what_cannot_be_clicked_says_why(server, site, path, selector, text):
    server.ok("navigate", url=site + path, wait_until="load")
    start = time.monotonic()
    status, answer = server.post("click", selector=selector, timeout=300)
    assert (status, answer["type"]) == (500, "TimeoutError") and text in answer["error"]
    assert 0.28 < time.monotonic() - start < 5


@pytest.mark.parametrize("path,selector", [("/below", "#low"), ("/replaced", "#rb")])
def test_clicks_below_the_fold_and_on_moving_ground(server, site, path, selector):
    server.ok("navigate", url=site + path, wait_until="load")
    server.ok("click", selector=selector, timeout=0)
    assert server.js("window.n") == 1


@pytest.mark.parametrize("selector", ['"', '");alert(1)//', ">>>", "xpath=//[", "text=/(/"])
def test_bad_selectors_are_400(server, site, selector):
    server.ok("navigate", url=site + "/", wait_until="load")
    server.get("console")
    status, answer = server.post("click", selector=selector, timeout=500)
    assert (status, answer["type"]) == (400, "ValueError")
    assert server.get("console")[1]["logs"] == []


def test_odd_attribute_selectors(server, site):
    server.ok("navigate", url=site + "/", wait_until="load")
    server.js("""document.body.insertAdjacentHTML('beforeend', '<a title="x\\'y" onclick="window.n=5">q</a>')""")
    server.ok("click", selector="""a[title="x'y"]""")
    assert server.js("window.n") == 5


def test_type_exactly(server, site):
    text = "a\"b'c\\</script>${1}\U0001f600 \u05e9\u05dc\u05d5\u05dd e\u0301"
    server.ok("navigate", url=site + "/", wait_until="load")
    assert server.ok("type", selector="#i", text="XY", delay=0) == {"typed": True, "selector": "#i", "text": "XY"}
    assert server.js("i.value") == "XYold"
    server.ok("type", selector="#i", text=text, clear=True, delay=0)
    assert server.js("i.value") == text
    server.ok("type", selector="#i", text="", clear=True)
    assert server.js("i.value") == ""


def test_type_into_what_is_no_plain_field(server, site):
    server.ok("navigate", url=site + "/editable", wait_until="load")
    server.ok("type", selector="#e", text="new", clear=True, delay=0)
    assert server.js("e.textContent") == "new"
    status, answer = server.post("type", selector="#ro", text="x", timeout=300)
    assert (status, answer["type"]) == (500, "TimeoutError") and "read-only" in answer["error"]


def test_typed_text_stays_in_its_field(server, site):
    server.ok("navigate", url=site + "/fields", wait_until="load")
    server.ok("type", selector="#ta", text="a\tb\nc", delay=0)
    assert server.js("ta.value") == "a\tb\nc"
    server.ok("type", selector="#a", text="x\ty", delay=0)
    assert server.js("[a.value, document.activeElement.id]") == ["x\tykeep", "a"]


@pytest.mark.parametrize("selector,clear", [("#p", False), ("#p", True), ("#k", True), ("#s", True)])
def test_what_takes_no_text_leaves_the_other_fields_alone(server, site, selector, clear):
    server.ok("navigate", url=site + "/fields", wait_until="load")
    server.js("a.focus(); a.select(); 1")
    status, answer = server.post("type", selector=selector, text="7", delay=0, clear=clear)
    assert (status, answer["type"]) == (500, "Error") and "text" in answer["error"]
    assert server.js("[a.value, k.value, k.checked, s.value]") == ["keep", "v", False, "o"]


def test_clear_empties_every_kind_of_field(server, site):
    server.ok("navigate", url=site + "/fields", wait_until="load")
    server.js("a.select(); 1")
    for name in ("n", "d"):
        server.ok("type", selector="#" + name, text="", clear=True)
    assert server.js("[a.value, n.value, d.value]") == ["keep", "", ""]
    server.ok("type", selector="#lb", text="new", clear=True, delay=0)
    assert server.js("a.value") == "new"


def test_keys_go_to_the_page_or_where_the_page_sends_them(server, site):
    server.ok("navigate", url=site + "/fields", wait_until="load")
    server.js("a.focus(); 1")
    server.ok("type", selector="body", text="q", delay=0)
    assert server.js("[at, a.value]") == ["body:q", "keep"]
    server.js("a.focus(); 1")
    server.ok("press", selector="#p", key="z")
    assert server.js("[at, a.value]") == ["body:z", "keep"]
    server.ok("type", selector="#away", text="w", delay=0)
    assert server.js("[at, a.value]") == ["input:w", "wkeep"]


def test_frames_and_shadow_roots(server, site):
    server.ok("navigate", url=site + "/frames", wait_until="load")
    server.get("console")
    server.ok("click", selector="#b")
    assert any("hello" in line["text"] for line in server.get("console")[1]["logs"])
    server.ok("click", selector="#s")
    assert server.js("window.hit") == 1


def test_forms_and_keys(server, site):
    server.ok("navigate", url=site + "/form", wait_until="load")
    server.ok("click", selector="#k")
    assert server.js("k.checked") is True
    server.ok("type", selector="#q", text="word", delay=0)
    server.ok("press", key="Control+a", selector="#q")
    server.ok("press", key="Backspace")
    assert server.js("q.value") == ""
    server.ok("type", selector="#q", text="w\n", delay=0)
    server.ok("wait", text="second")
    assert server.js("location.search") == "?q=w"
    assert server.post("press", key="NoSuchKey")[0] == 400


def test_dialogs_are_dismissed_and_noted(server, site):
    server.get("console")
    assert server.ok("navigate", url=site + "/dialogs", wait_until="load")["title"] == "Dialogs"
    assert server.js("confirm('sure?')") is False
    texts = [line["text"] for line in server.get("console")[1]["logs"] if line["type"] == "dialog"]
    assert len(texts) == 4 and "alert dialog dismissed: 1" in texts
    for name in ("screenshot", "pdf"):
        server.ok(name)


def test_popups_stay_beside(server, site):
    server.ok("navigate", url=site + "/popups", wait_until="load")
    server.ok("click", selector="#t")
    assert server.call("GET", "/browser/content")[1]["url"] == site + "/popups"
    server.js("for(let i=0;i<20;i++)window.open('/two');1")
    assert server.js("1+1") == 2
    assert server.ok("screenshot", full_page=False)["width"] == 1280


def test_a_page_that_closes_itself_is_replaced(fresh, site):
    s = fresh(params={"allow_private": True})
    s.ok("navigate", url=site + "/closes", wait_until="load")
    s.post("evaluate", script="window.open('','_self');window.close();1")
    s.post("click", selector="#c", timeout=500)
    assert wait_until(lambda: s.post("evaluate", script="1+1")[1].get("result") == 2)
    s.ok("screenshot")


def test_errors_of_the_page_are_in_the_console(server, site):
    server.get("console")
    server.ok("navigate", url=site + "/errors")
    logs = server.get("console")[1]["logs"]
    assert any(line["type"] == "error" and "boom" in line["text"] and line["line"] == 1 for line in logs)
    assert any(line["type"] == "error" and line["url"].endswith("/no.png") for line in logs)


def test_the_console_keeps_the_newest(server, site):
    server.get("console")
    server.ok("navigate", url=site + "/many", wait_until="load")
    server.js("1")
    answer = server.get("console")[1]
    assert len(answer["logs"]) == 1000 and answer["dropped"] >= 500
    assert answer["logs"][-1]["text"] in ("n1499", "Failed to load resource: the server responded with a status "
                                          "of 404 (Not Found)")


# --- pictures and documents ---------------------------------------------------------------------------


def png_size(data):
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def test_screenshot_sizes_are_true(server, site):
    server.ok("navigate", url=site + "/tall", wait_until="load")
    shot = server.ok("screenshot")
    assert png_size(base64.b64decode(shot["image_base64"])) == (shot["width"], shot["height"])
    assert shot["height"] == 20000
    shot = server.ok("screenshot", full_page=False)
    assert (shot["width"], shot["height"]) == (1280, 720)
    shot = server.ok("screenshot", full_page=False, format="JPEG")
    assert base64.b64decode(shot["image_base64"])[:3] == b"\xff\xd8\xff"


def test_screenshot_of_an_element(server, site):
    server.ok("navigate", url=site + "/", wait_until="load")
    shot = server.ok("screenshot", selector="#b")
    box = server.js("(r=>[Math.trunc(r.width),Math.trunc(r.height)])(b.getBoundingClientRect())")
    assert [shot["width"], shot["height"]] == box
    status, answer = server.post("screenshot", selector="#zz")
    assert (status, answer["type"]) == (404, "ValueError")


def test_screenshot_of_an_element_holds_all_its_pixels(server, site):
    server.ok("navigate", url=site + "/box", wait_until="load")
    shot = server.ok("screenshot", selector="#box")
    assert (shot["width"], shot["height"]) == (20, 8)
    assert png_size(base64.b64decode(shot["image_base64"])) == (21, 9)  # 10.5 to 31, 3.25 to 11.25


def test_screenshot_of_twenty_megabytes(server, site):
    server.ok("navigate", url=site + "/noise", wait_until="load")
    data = base64.b64decode(server.ok("screenshot")["image_base64"])
    assert len(data) > 15 << 20 and png_size(data)[1] >= 2600


def test_pdf(server, site):
    server.ok("navigate", url=site + "/static", wait_until="load")
    answer = server.ok("pdf")
    assert base64.b64decode(answer["pdf_base64"])[:5] == b"%PDF-" and answer["pages"] == 1
    server.js("document.body.innerHTML='<div style=\"break-after:page\">x</div>'.repeat(7)+'end'; 1")
    assert server.ok("pdf", format="letter", landscape=True)["pages"] == 8
    for paper in ("zzz", 5, True, ["A4"]):
        status, answer = server.post("pdf", format=paper)
        assert (status, answer["type"]) == (500, "Error")
        assert answer["error"].startswith("Page.pdf: Unknown paper format: ")


def test_pages_that_print_themselves_still_become_documents(server, site):
    server.ok("navigate", url=site + "/print", wait_until="load")
    assert server.ok("pdf")["pages"] == 1
    server.ok("click", selector="#b")
    assert server.js("print()") is None
    assert server.ok("pdf")["pages"] == 1


# --- additions -----------------------------------------------------------------------------------------


def test_wait(server, site):
    server.ok("navigate", url=site + "/late", wait_until="load")
    assert server.ok("wait", selector="#p")["waited"] is True
    server.ok("wait", text="come")
    server.ok("wait", load_state="load")
    server.ok("wait", selector="#none", state="detached")
    assert server.post("wait", text="never", timeout=200)[1]["type"] == "TimeoutError"
    assert server.post("wait")[0] == 400


def test_scroll_and_viewport(server, site):
    server.ok("navigate", url=site + "/below", wait_until="load")
    assert server.ok("scroll", y=300)["y"] == 300
    bottom = server.ok("scroll", to="bottom")
    assert bottom["y"] == bottom["max_y"] > 4000
    server.ok("scroll", to="top")
    assert server.ok("scroll", selector="#low")["y"] > 3000
    server.ok("viewport", width=400, height=300)
    assert server.js("[innerWidth, innerHeight]") == [400, 300]
    assert server.js("[screen.width, screen.height]") == [400, 300]
    server.ok("viewport", width=1280, height=720)
    assert server.js("[screen.width, screen.height]") == [1280, 720]
    assert server.post("viewport", width=0, height=1)[0] == 400


def test_cookies(server, site):
    server.ok("cookies", clear=True)
    server.ok("cookies", cookies=[{"name": "a", "value": "1", "url": site + "/"}])
    server.ok("navigate", url=site + "/", wait_until="load")
    assert server.js("document.cookie") == "a=1"
    assert [(c["name"], c["value"]) for c in server.get("cookies")[1]["cookies"]] == [("a", "1")]
    server.ok("cookies", clear=True)
    assert server.get("cookies")[1]["cookies"] == []
    assert server.post("cookies", cookies=[{"name": "x"}])[0] == 400


def test_snapshot_refs_can_be_acted_on(server, site):
    server.ok("navigate", url=site + "/frames", wait_until="load")
    text = server.get("snapshot")[1]["snapshot"]
    line = next(part for part in text.splitlines() if 'button "Shadow"' in part)
    ref = line.split("[ref=")[1].split("]")[0]
    server.js("window.hit=0")
    server.ok("click", ref=ref)
    assert server.js("window.hit") == 1
    assert server.get("snapshot")[1]["snapshot"].count(f"[ref={ref}]") == 1
    inner = next(part for part in text.splitlines() if "textbox" in part).split("[ref=")[1].split("]")[0]
    server.ok("type", selector="ref=" + inner, text="Z", delay=0)
    server.ok("navigate", url=site + "/two", wait_until="load")
    assert server.post("click", ref=ref, timeout=500)[0] == 404


def test_a_ref_that_is_no_element_is_not_found(server, site):
    server.ok("navigate", url=site + "/", wait_until="load")
    began = time.monotonic()
    for number in list(range(1, 9)) + [2**31 - 1]:  # the first ones may be the document, its texts, or the <html>
        for name, more in (("click", {}), ("type", {"text": "x"}), ("screenshot", {}), ("scroll", {}),
                           ("press", {"key": "a"}), ("wait", {})):
            status, answer = server.post(name, ref=f"e{number}", timeout=300, **more)
            assert status in (200, 404) or answer["type"] == "TimeoutError", (number, name, status, answer)
            if number == 2**31 - 1:
                assert (status, answer["type"]) == (404, "ValueError"), (name, answer)
    assert time.monotonic() - began < 60


def test_a_ref_that_left_the_page_is_not_found_at_once(server, site):
    server.ok("navigate", url=site + "/", wait_until="load")
    server.js("document.body.innerHTML = '<button>Gone</button>'; window.kept = document.querySelector('button'); 1")
    line = next(part for part in server.get("snapshot")[1]["snapshot"].splitlines() if 'button "Gone"' in part)
    ref = line.split("[ref=")[1].split("]")[0]
    server.js("kept.remove(); 1")
    for name, more in (("click", {}), ("type", {"text": "x"}), ("press", {"key": "a"}), ("scroll", {}), ("screenshot", {})):
        began = time.monotonic()
        status, answer = server.post(name, ref=ref, timeout=20000, **more)
        assert (status, answer["type"]) == (404, "ValueError"), (name, answer)
        assert time.monotonic() - began < 10
    assert server.post("wait", ref=ref, state="detached", timeout=2000)[0] == 200


def test_sessions_are_apart(server, site):
    server.ok("navigate", url=site + "/", wait_until="load")
    server.js("document.cookie='shared=1'; 1")
    page = server.ok("navigate", url=site + "/two", session="alice", wait_until="load")
    assert page["title"] == "Two"
    assert server.js("document.cookie", session="alice") == ""
    assert server.js("document.title") == "T1"
    status, answer = server.call("GET", "/browser/content?type=text", headers={"X-Browser-Session": "alice"})
    assert answer["content"] == "second"
    for i in range(7):
        server.ok("evaluate", script="1", session=f"s{i}")
    assert server.post("evaluate", script="1", session="one-more")[0] == 429
    for name in ["alice"] + [f"s{i}" for i in range(7)]:
        assert server.call("DELETE", f"/browser/sessions?session={name}")[0] == 200
    assert server.call("DELETE", "/browser/sessions?session=alice")[0] == 404
    assert server.post("evaluate", script="1", session="no blanks")[0] == 400


# --- load, crashes, ends ---------------------------------------------------------------------------------


def test_thirty_calls_at_once_on_a_fresh_server(fresh, site):
    s = fresh(params={"allow_private": True})
    with concurrent.futures.ThreadPoolExecutor(30) as pool:
        jobs = [pool.submit(s.post, "evaluate", script=f"{i}*1000") if i % 3 else
                pool.submit(s.post, "screenshot", full_page=False) for i in range(30)]
        for i, job in enumerate(jobs):
            status, answer = job.result()
            assert status == 200, answer
            assert answer["result"] == i * 1000 if i % 3 else answer["width"] == 1280
    mains = [p for p in s.browsers() if b"--type=" not in pathlib.Path(f"/proc/{p}/cmdline").read_bytes()
             and b"crashpad" not in pathlib.Path(f"/proc/{p}/cmdline").read_bytes()]
    assert len(mains) == 1


def test_two_hundred_mixed_calls_from_eight_clients(server, site):
    def client(n):
        session = "" if n % 2 else f"c{n}"
        for i in range(25):
            kind = i % 5
            if kind == 0:
                server.ok("navigate", url=site + "/", wait_until="load", session=session)
            elif kind == 1:
                assert server.js(f"{n}+{i}", session=session) == n + i
            elif kind == 2:
                server.ok("screenshot", full_page=False, session=session)
            elif kind == 3:
                server.ok("click", selector="body", session=session)
            else:
                assert server.call("GET", f"/browser/content?session={session}")[0] == 200

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(8)))
    for n in (0, 2, 4, 6):
        server.call("DELETE", f"/browser/sessions?session=c{n}")


def test_warm_calls_are_quick(server, site):
    def round_trip():
        start = time.monotonic()
        server.ok("navigate", url=site + "/static", wait_until="load")
        server.js("document.title")
        server.ok("screenshot")
        return time.monotonic() - start

    # 0.17 s at a loaded machine's median; the bound only catches a wait that should not be there.
    assert min(statistics.median(round_trip() for _ in range(7)) for _ in range(4)) < 2


def test_a_client_that_leaves_does_not_block_the_next(server, site):
    with pytest.raises(OSError):
        server.call("POST", "/browser/navigate", {"url": site + "/never", "timeout": 20000}, timeout=0.5)
    start = time.monotonic()
    assert server.js("1+1") == 2
    assert time.monotonic() - start < 20


def test_crashes_cost_one_call(fresh, site):
    s = fresh(params={"allow_private": True})
    s.ok("navigate", url=site + "/", wait_until="load")
    for kind in (b"--type=renderer", b"--headless=new"):
        pids = [p for p in s.browsers() if kind in pathlib.Path(f"/proc/{p}/cmdline").read_bytes()]
        assert pids
        for p in pids:
            try:
                os.kill(p, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.2)
        s.post("evaluate", script="1")
        assert s.js("1+1") == 2


def test_nothing_is_left_after_stop_and_after_kill(fresh, site):
    s = fresh(params={"allow_private": True})
    for _ in range(3):
        s.ok("navigate", url=site + "/", wait_until="load")
        assert s.browsers()
        assert s.stop() == 0
        assert wait_until(lambda: not s.browsers(), 3)
        assert not list(pathlib.Path(s.tmp).glob("abx-browser*"))
        s.start()
    s.ok("navigate", url=site + "/", wait_until="load")
    s.process.kill()
    s.process.wait()
    assert wait_until(lambda: not s.browsers(), 3)
    assert list(pathlib.Path(s.tmp).glob("abx-browser*/p-*"))
    s.start()
    assert wait_until(lambda: not list(pathlib.Path(s.tmp).glob("abx-browser*")), 3)
    s.ok("navigate", url=site + "/", wait_until="load")


def test_the_server_stops_in_the_middle_of_calls(fresh, site):
    s = fresh(params={"allow_private": True})
    s.ok("navigate", url=site + "/", wait_until="load")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(s.post, "evaluate", script="new Promise(()=>{})", timeout=20000) for _ in range(4)]
        time.sleep(0.3)
        start = time.monotonic()
        assert s.stop() == 0
        assert time.monotonic() - start < 5
        for job in jobs:
            try:
                assert job.result()[0] >= 500
            except OSError:
                pass
    assert wait_until(lambda: not s.browsers(), 3)


@pytest.mark.skipif(os.environ.get("ABX_SANITIZED") == "1", reason="a sanitizer's runtime must be loaded first")
@pytest.mark.parametrize("params", [{"allow_private": True}, {}])
def test_a_name_server_that_has_gone_stalls_nothing_else(fresh, site, params):
    """A look-up takes a minute here. And no name is looked up that no page has asked for."""
    names = pathlib.Path(tempfile.mkdtemp(prefix="abx-test-")) / "names"
    s = fresh(params=params, env={"LD_PRELOAD": str(SERVER.parents[1] / "tests" / "stalls.so"), "STALL_NAMES": str(names)})
    s.js("for (let i = 0; i < 20; i++) fetch(`http://a${i}.stalled/`).catch(() => 0); 1")
    if params:
        assert s.ok("navigate", url=site + "/", wait_until="load", timeout=20000)["status"] == 200
    status, answer = s.call("POST", "/files/search", {"path": ".", "pattern": "policy.json"}, timeout=20)
    assert status == 200 and answer["results"]
    assert wait_until(lambda: names.read_text().count(".stalled\n") >= 20)
    assert not [n for n in names.read_text().split() if not n.endswith(".stalled") and n != "127.0.0.1"]
    start = time.monotonic()
    s.process.terminate()
    assert s.process.wait(30) == 0
    assert time.monotonic() - start < 20  # 5 on a machine that has time
    assert wait_until(lambda: not s.browsers(), 3)


def test_idle_browsers_end_and_come_back(fresh, site):
    s = fresh(params={"allow_private": True}, env={"ABX_BROWSER_IDLE_SECONDS": "1"})
    s.ok("navigate", url=site + "/", wait_until="load")
    assert wait_until(lambda: not s.browsers(), 6)
    assert s.js("1+1") == 2


@pytest.mark.parametrize("script", [None, "exit 3", "exec sleep 60", "exec yes"])
def test_a_browser_that_does_not_come_up(fresh, site, script):
    folder = tempfile.mkdtemp(prefix="abx-test-")
    path = os.path.join(folder, "browser")
    if script:
        pathlib.Path(path).write_text(f"#!/bin/sh\necho 'a telling reason' >&2\n{script}\n")
        os.chmod(path, 0o755)
    s = fresh(params={"allow_private": True}, env={"ABX_BROWSER_PATH": path})
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        for status, answer in pool.map(lambda _: s.post("evaluate", script="1"), range(5)):
            assert (status, answer["type"]) == (503, "RuntimeError")
            assert "ABX_BROWSER_PATH" in answer["error"] if not script else "a telling reason" in answer["error"]
    assert time.monotonic() - start < 16
    assert wait_until(lambda: not s.browsers(), 3)
    if os.path.exists(path):
        os.unlink(path)
    os.symlink(CHROMIUM, path)
    assert s.js("1+1") == 2
    s.close()
    shutil.rmtree(folder)


def test_the_browser_gets_no_secrets(fresh, site):
    s = fresh(params={"allow_private": True}, token="tok-123", env={"MY_PASSWORD": "hunter2"})
    s.ok("evaluate", script="1")
    for p in s.browsers():
        environ = pathlib.Path(f"/proc/{p}/environ").read_bytes()
        assert b"tok-123" not in environ and b"hunter2" not in environ


def test_the_real_client(fresh, site):
    client_module = pytest.importorskip("agent_sandbox.api.server_client")
    s = fresh(params={"allow_private": True}, token="tok-123")

    async def use():
        browser = client_module.ServerClient(f"http://127.0.0.1:{s.port}", token="tok-123").browser
        page = await browser.navigate(site + "/")
        assert (page.url, page.title, page.status) == (site + "/", "T1", 200)
        assert "Hello" in (await browser.content()).content
        assert (await browser.screenshot())[:4] == b"\x89PNG"
        await browser.click("#b")
        await browser.type("#i", "XY")
        assert await browser.evaluate("i.value") == "XYold"
        assert (await browser.pdf())[:5] == b"%PDF-"
        assert [line["text"] for line in await browser.console()] == ["hello {a: 1} [1, 2]"]
        with pytest.raises(Exception, match="Timeout 300ms"):
            await browser.click("#none", timeout=300)

    asyncio.run(use())


# --- DevTools clients -------------------------------------------------------------------------------------


def test_playwright_connects_over_cdp(fresh, site):
    playwright = pytest.importorskip("playwright.sync_api")
    s = fresh(params={"allow_private": True}, token="tok-123")
    s.ok("navigate", url=site + "/", wait_until="load")
    with playwright.sync_playwright() as p:
        for endpoint in (f"http://127.0.0.1:{s.port}/browser/cdp", f"http://127.0.0.1:{s.port}",
                         f"ws://127.0.0.1:{s.port}/browser/cdp"):
            browser = p.chromium.connect_over_cdp(endpoint, headers={"X-Access-Token": "tok-123"})
            assert browser.contexts[0].pages[0].title() == "T1"
            page = browser.new_context().new_page()
            page.goto(site + "/")
            page.fill("#i", "from playwright \U0001f600")
            assert page.input_value("#i") == "from playwright \U0001f600"
            page.click("#l")
            assert page.text_content("p") == "second"
            assert page.screenshot()[:4] == b"\x89PNG"
            assert page.evaluate("'x'.repeat(5<<20).length") == 5 << 20
            with pytest.raises(playwright.Error):
                page.goto("file:///etc/passwd")
            browser.close()
        with pytest.raises(playwright.Error):
            p.chromium.connect_over_cdp(f"ws://127.0.0.1:{s.port}/browser/cdp")
    assert s.js("document.title") == "T1"
