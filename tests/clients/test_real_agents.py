"""The real Codex and Qwen Code, from npm, on a model that is a stand-in: whole turns, offline.

Needs an npm that can install the two packages; ABX_REAL_AGENTS=DIR names a folder where they are installed already
(DIR/node_modules/.bin). Skips when neither is to be had.
"""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "conformance"))

pytest.importorskip("websockets")

from test_agents import IDLE, SESSIONS, Client, frames_until, socket_of, wait_for  # noqa: E402

MOCK = os.path.join(os.path.dirname(HERE), "agents", "mock_llm.py")
PACKAGES = ["@openai/codex", "@qwen-code/qwen-code"]
RUNTIMES = ["codex", "qwen-code"]


@pytest.fixture(scope="session")
def clis(tmp_path_factory) -> str:
    named = os.environ.get("ABX_REAL_AGENTS")
    folder = named or str(tmp_path_factory.mktemp("npm"))
    if not named:
        if not shutil.which("npm"):
            pytest.skip("needs npm")
        told = subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=60).stdout
        newer = [] if told and int(told[1:].split(".")[0]) >= 20 else ["node@22"]  # Debian 12's is too old for Qwen Code
        try:
            subprocess.run(["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", *PACKAGES, *newer],
                           capture_output=True, timeout=300, check=True)
        except subprocess.SubprocessError:
            pytest.skip("the packages can't be installed, or not in time")
    bins = os.path.join(folder, "node_modules", ".bin")
    for name in ("codex", "qwen"):
        try:
            subprocess.run([os.path.join(bins, name), "--version"], check=True, capture_output=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            pytest.skip(f"{name} does not start here")
    return bins


@pytest.fixture(scope="session")
def model():
    with subprocess.Popen([sys.executable, MOCK], stdout=subprocess.PIPE, text=True) as mock:
        yield mock.stdout.readline().strip()
        mock.terminate()


@pytest.fixture
def client(start, tmp_path, clis, model) -> Client:
    home = tmp_path / "home"
    (home / "codex").mkdir(parents=True)
    url = model.rstrip("/")
    (home / "codex" / "config.toml").write_text(
        f'model = "mock-model"\nmodel_provider = "mock"\n'
        f'[model_providers.mock]\nname = "mock"\nbase_url = "{url}"\nwire_api = "responses"\n'
        f'env_key = "OPENAI_API_KEY"\nrequest_max_retries = 0\nstream_max_retries = 0\n'
    )
    env = {
        "ABX_SERVER_ENABLED_GROUPS": "agents",
        "ABX_AGENTS_RESPONSES_WORKSPACE": str(tmp_path / "resp"),
        "PATH": clis + os.pathsep + os.environ["PATH"],
        "CODEX_HOME": str(home / "codex"),
        "OPENAI_API_KEY": "key-for-the-mock-01",
        "OPENAI_BASE_URL": url,
        "OPENAI_MODEL": "mock-model",
    }
    return Client(start(env=env, base=str(tmp_path)))


def session(client: Client, runtime: str, prompt: str) -> str:
    return client.session(prompt, adapter=runtime)


def done(client: Client, name: str) -> list[dict]:
    wait_for(lambda: client.get(f"{SESSIONS}/{name}")["status"] == "idle", 90)
    return client.turns(name)


def texts(client: Client, name: str) -> str:
    return "\n".join(i["content"][0]["text"] for i in client.items(name) if i["type"] == "message")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_plain_turn_and_a_second_one(client, runtime):
    name = session(client, runtime, "hello there")
    seen = client.events(name, timeout=90)
    assert seen[-1][0] == IDLE
    (turn,) = client.turns(name)
    assert turn["status"] == "completed", turn
    assert "echo: hello there" in texts(client, name)
    client.say(name, "and again")
    first, second = done(client, name)
    assert second["status"] == "completed", second
    assert "echo: and again" in texts(client, name)
    if first["usage"] and second["usage"]:
        whole = client.get(f"{SESSIONS}/{name}")["usage"]
        assert whole["total_tokens"] == first["usage"]["total_tokens"] + second["usage"]["total_tokens"]


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("prompt", ["--help", "mcp", "x" * 150000])
def test_prompts_that_look_like_options(client, runtime, prompt):
    name = session(client, runtime, prompt)
    (turn,) = done(client, name)
    assert turn["status"] == "completed", (turn["error"], [str(i)[:300] for i in client.items(name)])
    assert f"echo: {prompt[:100]}" in texts(client, name)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_shell_command(client, runtime):
    name = session(client, runtime, "run: echo made-by-agent > made.txt; cat made.txt")
    (turn,) = done(client, name)
    assert turn["status"] == "completed", turn
    commands = [i for i in client.items(name) if i["type"] == "command_execution"]
    assert commands and "made-by-agent" in commands[0]["output"], client.items(name)
    with open(os.path.join(client.server.base, "made.txt")) as file:
        assert file.read() == "made-by-agent\n"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_cancel_in_the_middle(client, runtime):
    name = session(client, runtime, "slow: 60")
    wait_for(lambda: client.turns(name)[0]["status"] == "in_progress")
    time.sleep(4)
    began = time.monotonic()
    client.cancel(name)
    (turn,) = done(client, name)
    assert turn["status"] == "cancelled" and time.monotonic() - began < 9


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_provider_error(client, runtime):
    name = session(client, runtime, "fail: 401")
    (turn,) = done(client, name)
    assert turn["status"] == "failed" and turn["error"]["code"] == "authentication_error", turn


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_responses(client, runtime):
    plain = client.ask("POST", "/v1/responses", {"model": runtime, "input": "plain one"}, timeout=90).json
    assert plain["status"] == "completed", plain
    assert "echo: plain one" in plain["output"][-1]["content"][0]["text"]
    streamed = client.ask("POST", "/v1/responses", {"model": runtime, "input": "streamed", "stream": True, "previous_response_id": plain["id"]}, timeout=90)
    assert "event: response.completed" in streamed.text and "event: response.output_text.delta" in streamed.text
    with socket_of(client) as ws:
        ws.send(json.dumps({"type": "response.create", "model": runtime, "input": "by socket"}))
        frames = frames_until(ws, "response.completed", "response.failed")
        assert "echo: by socket" in frames[-1]["response"]["output"][-1]["content"][0]["text"]


def test_the_openai_library(client):
    openai = pytest.importorskip("openai")
    lib = openai.OpenAI(api_key="unused", base_url=f"http://127.0.0.1:{client.server.port}/v1", timeout=90)
    made = lib.responses.create(model="codex", input="from the library")
    assert made.status == "completed" and "echo: from the library" in made.output_text
    text, kinds = "", []
    for event in lib.responses.create(model="codex", input="in pieces", stream=True):
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed" and "echo: in pieces" in text
    assert lib.responses.retrieve(made.id).id == made.id
    assert "codex" in [m.id for m in lib.models.list().data]
