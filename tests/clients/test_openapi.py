"""GET /openapi.json: a valid OpenAPI 3.1 document of this very server, and a server that answers as it says: schemathesis makes
up requests for every endpoint, good and bad ones, and compares."""

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest
import schemathesis
from abxconf.server import running
from conftest import PROGRAM, ROOT
from hypothesis import HealthCheck, given, settings
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.failures import Failure, FailureGroup

sys.path.insert(0, os.path.join(ROOT, "scripts"))

import api_table  # noqa: E402

BUILD = pathlib.Path(os.environ.get("ABX_BUILD", os.path.join(ROOT, "build")))
COMMANDS = os.environ.get("ABX_COMMANDS", str(BUILD / "tests/commands_fixture.so"))
ROWS = {row["id"]: (row, op) for row, op in api_table.described()}
EXAMPLES = 5
NEEDS_CHROMIUM = {name for name, (row, _) in ROWS.items() if row["group"] == "browser"} - {"browser_console", "browser_sessions", "browser_session_delete"}
# What waits for its time to be over is kept short.
POLICY = {"groups": ["dev_tools", "browser", "agents"],
          "endpoints": {"files_watch": {"limits": {"max_duration_seconds": 0.2}}, "shell": {"limits": {"timeout_seconds": 2}},
                        "shell_stream": {"limits": {"timeout_seconds": 2}}, "process_start": {"limits": {"timeout_seconds": 2}},
                        "code_run": {"limits": {"timeout_seconds": 2}}, "run_command": {"limits": {"timeout_seconds": 1}}}}


def get(server, path, **headers):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        connection.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        return answer, answer.read()


def document(server, query="", **headers):
    answer, text = get(server, "/openapi.json" + query, **headers)
    assert answer.status == 200 and answer.headers["Content-Type"].startswith("application/json")
    return json.loads(text)


def operations(doc):
    return {op["operationId"]: op for path in doc["paths"].values() for op in path.values()}


def problems(doc):
    return [f"{list(e.absolute_path)}: {e.message}" for e in OpenAPIV31SpecValidator(doc).iter_errors()]


# --- the document ----------------------------------------------------------------------------------------------------

def test_a_wrong_document_is_found(start):
    doc = document(start())
    doc["paths"]["/health"]["get"]["responses"]["200"].pop("description")
    assert problems(doc)


@pytest.mark.parametrize("query", ["", "?all=true"])
def test_it_is_valid(start, query):
    assert problems(document(start(commands=COMMANDS), query)) == []


def test_it_has_every_endpoint(start):
    found = operations(document(start(), "?all=true"))
    assert set(found) == set(ROWS)
    for name, (row, _) in ROWS.items():
        assert found[name]["x-abx-scopes"] == row["scopes"], name
        assert found[name]["tags"] == [row["group"]], name


def test_what_is_off_is_left_out_unless_asked_for(start):
    server = start(policy={"endpoints": {"shell": {"enabled": False}}})
    found = operations(document(server))
    assert "shell" not in found and "code_run" not in found and "shell_stream" in found
    assert not any("x-abx-enabled" in op for op in found.values())
    everything = operations(document(server, "?all=true"))
    assert everything["shell"]["x-abx-enabled"] is False and "x-abx-enabled" not in everything["shell_stream"]


def test_scopes_are_those_of_the_policy(start):
    doc = document(start(policy={"endpoints": {"shell": {"scopes": ["ops:shell"]}}}))
    assert operations(doc)["shell"]["x-abx-scopes"] == ["ops:shell"]


def test_it_is_open_to_whoever_may_read_capabilities(start):
    server = start(env={"A": "aa"}, policy={"preset": "locked", "auth": {"tokens": [{"id": "a", "scopes": [], "token_env": "A"}]}})
    assert get(server, "/openapi.json")[0].status == 401
    doc = document(server, X_Access_Token="aa")
    assert doc["security"] == [{"accessToken": []}, {"bearer": []}]
    assert "openapi" in operations(doc) and "files_stat" not in operations(doc)
    assert document(start())["security"] == []


def test_commands_have_their_arguments(start):
    server = start(env={"A": "aa", "B": "bb"}, commands=COMMANDS, policy={"auth": {"tokens": [
        {"id": "a", "scopes": ["*"], "token_env": "A"}, {"id": "b", "scopes": ["commands:*"], "token_env": "B"}]}})
    paths = document(server, X_Access_Token="aa")["paths"]

    def body(name):
        return paths[f"/commands/{name}"]["post"]["requestBody"]["content"]["application/json"]["schema"]

    assert body("echo_all")["properties"] == {"s": {"type": "string"}, "i": {"type": "integer"}, "f": {"type": "number"}, "b": {"type": "boolean"}}
    assert body("echo_all")["required"] == ["s", "i", "f", "b"] and body("echo_all")["additionalProperties"] is False
    assert body("hello")["properties"]["name"] == {"type": "string", "default": "World"}
    assert body("default_tags")["properties"]["items"] == {"type": "array", "items": {"type": "string"}, "default": ["x", "y"]}
    assert body("scale")["properties"]["factor"] == {"type": "number", "default": 2.0}
    assert "/commands/hidden_hello" not in paths and "/commands/needs_scope" in paths
    assert "/commands/needs_scope" not in document(server, X_Access_Token="bb")["paths"]


def test_routes_of_a_template_are_there(start):
    paths = document(start(commands=COMMANDS))["paths"]
    assert paths["/open-route"]["get"]["security"] == []
    assert [p["name"] for p in paths["/items/{kind}/{id}"]["post"]["parameters"]] == ["kind", "id"]
    assert paths["/scoped-route"]["get"]["x-abx-scopes"] == ["reports:run"]


# --- does the server do what it says? -----------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    tools = tmp_path_factory.mktemp("bin")
    shutil.copy(os.path.join(ROOT, "tests/agents/fake-codex"), tools / "codex")
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "ABX_AGENTS_TRACES": "1", "ABX_AGENTS_MAX_SESSIONS": "5"}
    with running(PROGRAM, policy=POLICY, commands=COMMANDS, env=env) as server:
        schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{server.port}/openapi.json")
        schema.config.update(base_url=f"http://127.0.0.1:{server.port}")
        schema.server = server
        yield schema
        assert server.alive()


load_all_checks()
CONFORM = [CHECKS.get_one(name) for name in ("status_code_conformance", "content_type_conformance", "response_schema_conformance",
                                              "response_headers_conformance")]


def judge(case, response, declared):
    if response.status_code >= 500:
        assert str(response.status_code) in declared or "5XX" in declared, response.text
        assert '"code": "internal"' not in response.text, "an internal fault"
    case.validate_response(response, checks=CONFORM)


@pytest.mark.parametrize("change", [
    lambda answers: answers["200"]["content"]["application/json"]["schema"]["properties"].update(status={"type": "integer"}),
    lambda answers: answers["200"]["content"].update({"text/plain": answers["200"]["content"].pop("application/json")}),
    lambda answers: answers.update({"201": answers.pop("200")}),
    lambda answers: answers["200"].update(headers={"X-Never": {"required": True, "schema": {"type": "string"}}}),
], ids=["schema", "type", "status", "header"])
def test_an_answer_that_is_not_as_described_is_found(loaded, change):
    doc = document(loaded.server)
    change(doc["paths"]["/health"]["get"]["responses"])
    wrong = schemathesis.openapi.from_dict(doc)
    wrong.config.update(base_url=f"http://127.0.0.1:{loaded.server.port}")
    case = wrong["/health"]["GET"].Case()
    with pytest.raises((Failure, FailureGroup)):
        case.validate_response(case.call(timeout=20), checks=CONFORM)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["good", "bad"])
@pytest.mark.parametrize("name", sorted(set(ROWS) - NEEDS_CHROMIUM))  # those drive a browser: test_browser.py
def test_answers_are_as_described(loaded, name, mode):
    row, op = ROWS[name]
    operation = loaded[row["path"]]["GET" if row["method"] == "WS" else row["method"]]
    if mode is GenerationMode.NEGATIVE and not (op["query"] or op["body"]):
        pytest.skip("nothing can be wrong")
    answered = []

    @settings(max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case):
        response = case.call(timeout=20)
        answered.append(response.status_code)
        judge(case, response, operation.definition.raw["responses"])

    ask()
    assert answered


class Walk:
    """Successful calls, each compared with the document. walk(id, {path parameter: value}, body=..., query=..., headers=...)
    -> the answer's JSON, or its text (of a long event stream: its beginning)."""

    def __init__(self, schema) -> None:
        self.schema = schema
        self.done: set[str] = set()

    def __call__(self, name, params=None, *, body=None, query=None, headers=None, media_type="application/json"):
        row, _ = ROWS[name]
        operation = self.schema[row["path"]][row["method"]]
        given = {"body": body, "media_type": media_type} if body is not None else {}
        case = operation.Case(method=row["method"], path_parameters=params or {}, query=query or {}, headers=headers or {}, **given)
        response = case.call(timeout=30)
        assert response.status_code < 400, f"{name}: {response.status_code} {response.text}"
        case.validate_response(response, checks=CONFORM)
        self.done.add(name)
        return response.json() if "json" in response.headers.get("content-type", [""])[0] else response.text

    def until(self, wanted, name, *args, **more):
        deadline = time.monotonic() + 20
        while not wanted(answer := self(name, *args, **more)):
            assert time.monotonic() < deadline, f"{name}: {answer}"
        return answer


@pytest.fixture
def walk(loaded):
    return Walk(loaded)


def test_successes_of_core_and_files_are_as_described(walk):
    walk("health")
    walk("capabilities")
    assert walk("capabilities_check", body={"endpoint": "files_stat", "path": "/etc"})["allowed"] is False
    walk("openapi")
    walk("list_commands")
    walk("run_command", {"name": "hello"}, body={})
    walk("files_mkdir", body={"path": "w"})
    walk("files_upload", body={"path": "w/a.txt", "content": "hello"})
    walk("files_upload_stream", body={"path": "w/b.txt", "content_base64": "aGVsbG8="})
    assert len(walk("files_list", query={"path": "w"})["entries"]) == 2
    walk("files_stat", query={"path": "w/a.txt"})
    walk("files_stat", query={"path": "w/none"})
    assert walk("files_search", body={"path": "w", "pattern": "a*"})["results"]
    walk("files_download", query={"path": "w/a.txt"})
    walk("files_download_stream", query={"path": "w/a.txt"})
    walk("files_download_stream", query={"path": "w/a.txt"}, headers={"Accept": "application/octet-stream", "Range": "bytes=1-2"})
    packed = walk("files_archive", body={"paths": ["w"], "format": "zip"})
    walk("files_extract", body={"path": "x", "content_base64": packed["content_base64"]})
    walk("files_move", body={"source": "x", "destination": "y"})
    walk("files_delete", query={"path": "y"})
    assert "event: ready" in walk("files_watch", query={"path": "w"})


def test_successes_of_programs_and_system_are_as_described(walk):
    walk("shell", body={"command": "echo hi", "limits": {"open_files": 100}})
    assert "event: exit" in walk("shell_stream", body={"command": "sh -c 'echo a; echo b >&2'"})
    pid = walk("process_start", body={"command": "cat", "stdin": True, "capture_output": True})["pid"]
    walk("process_list")
    walk("process_detail", {"pid": pid})
    walk("process_stdin", {"pid": pid}, body={"data": "x\n"})
    walk.until(lambda answer: answer["events"], "process_output", {"pid": pid}, query={"wait": 5})
    walk("process_signal", {"pid": pid}, body={"signal": 9})
    assert "event: exit" in walk("process_output", {"pid": pid}, headers={"Accept": "text/event-stream"})
    walk("process_detail", {"pid": pid})
    for name in ("system_info", "system_metrics", "env_get", "ports", "metrics"):
        walk(name)
    walk("packages", query={"manager": "dpkg"})
    walk("env_set", body={"vars": {"WALK": "1"}, "unset": ["NONE"]})
    session = walk("pty_create_session", body={"shell": "/bin/sh"})["session_id"]
    walk("pty_list_sessions")
    walk("pty_detail", {"id": session})
    walk("pty_resize", {"id": session}, body={"cols": 100, "rows": 30})
    walk("pty_delete_session", {"id": session})
    walk("code_run", body={"code": "print(1)", "language": "bash", "timeout": 2} | {"code": "echo 1"})
    base = walk.schema.server.work
    subprocess.run(["git", "init", "-q", f"{base}/repo"], check=True)
    pathlib.Path(base, "repo/new").write_text("x")
    walk("git_status", query={"path": "repo"})
    walk("git_diff", query={"path": "repo"})
    walk("browser_console")
    walk("browser_sessions")


def test_successes_of_agents_are_as_described(walk):
    base = walk.schema.server.work
    template = walk("agents_environment_templates_create", body={"name": "t", "env": {"A": "1"}})["id"]
    walk("agents_environment_templates_list")
    walk("agents_environment_templates_update", {"environment_template_id": template}, body={"name": "u"})
    walk("agents_environment_templates_get", {"environment_template_id": template})
    file = walk("agents_files_create", body={"purpose": "user_data", "data": "aGVsbG8=", "filename": "n.txt"})["id"]
    environment = walk("agents_environments_create", body={"environment": {"workspace_directory": f"{base}/ws", "environment_template_id": template}})["id"]
    walk("agents_environments_list")
    walk("agents_environments_get", {"environment_id": environment})
    walk("agents_environment_files_create", {"environment_id": environment}, body={"type": "file_id", "path": "/workspace/f", "file_id": file})
    walk("agents_environment_files_list", {"environment_id": environment})
    definition = walk("agents_definitions_create", body={"model": "codex", "name": "d", "metadata": {"a": "b"}})["id"]
    walk("agents_definitions_list")
    walk("agents_definitions_update", {"agent_id": definition}, body={"instructions": "be terse"})
    walk("agents_definitions_get", {"agent_id": definition})
    vault = walk("agents_vaults_create", body={"name": "v"})["id"]
    walk("agents_vaults_list")
    walk("agents_vaults_update", {"vault_id": vault}, body={"name": "w"})
    walk("agents_vaults_get", {"vault_id": vault})
    auth = {"type": "static_bearer", "mcp_server_url": "https://mcp.example.com/x", "token": "t"}
    credential = walk("agents_vault_credentials_create", {"vault_id": vault}, body={"name": "c", "auth": auth})["id"]
    both = {"vault_id": vault, "credential_id": credential}
    walk("agents_vault_credentials_list", {"vault_id": vault})
    walk("agents_vault_credentials_update", both, body={"auth": {"type": "static_bearer", "token": "u"}})
    walk("agents_vault_credentials_get", both)
    walk("agents_runtimes_list")
    walk("agents_models_list")
    walk("agents_models_get", {"model": "codex"})

    session = walk("agents_sessions_create", body={"agent_id": definition, "environment": {"id": environment}, "metadata": {"k": "v"},
                                                   "input": "think: a\nrun: echo hi\nwrite: f.txt hello\nspawn: say: x\nsay: done"})["id"]
    one = {"id": session}
    walk.until(lambda s: s["status"] == "idle", "agents_sessions_get", one)
    walk("agents_sessions_list")
    walk("agents_sessions_update", one, body={"metadata": {"k": "w"}})
    assert "event: agent.session.turn.created" in walk("agents_sessions_events_stream", one, query={"after": "0"})
    turn = walk("agents_sessions_turns_list", one)["data"][0]["id"]
    assert walk("agents_sessions_items_list", one)["data"]
    walk("agents_sessions_turns_get", {**one, "turn_id": turn})
    walk("agents_sessions_turns_items_list", {**one, "turn_id": turn})
    artifact = walk("agents_artifacts_list", one)["data"][0]["id"]
    walk("agents_artifacts_get", {**one, "artifact_id": artifact})
    walk("agents_artifacts_content", {**one, "artifact_id": artifact})
    walk("agents_artifacts_delete", {**one, "artifact_id": artifact})
    assert walk("agents_traces_list", one)["data"]
    subagent = walk("agents_subagents_list", one)["data"][0]["id"]
    child = {**one, "subagent_id": subagent}
    walk("agents_subagents_get", child)
    walk("agents_subagents_items_list", child)
    for turn in walk("agents_subagents_turns_list", child)["data"]:
        walk("agents_subagents_turns_get", {**child, "turn_id": turn["id"]})
        walk("agents_subagents_turns_items_list", {**child, "turn_id": turn["id"]})
    walk("agents_sessions_events_create", one, body={"input": "fail: no"})
    walk.until(lambda s: s["status"] == "idle", "agents_sessions_get", one)
    walk("agents_sessions_turns_list", one)
    walk("agents_sessions_delete", one)

    response = walk("agents_responses_create", body={"model": definition, "input": "say: hi"})["id"]
    assert "event: response.created" in walk("agents_responses_create", body={"model": definition, "input": "say: hi", "stream": True})
    assert "event: response.created" in walk("agents_responses_get", {"response_id": response}, query={"stream": "true"})
    walk("agents_responses_get", {"response_id": response})
    walk("agents_responses_input_items", {"response_id": response})
    waiting = walk("agents_responses_create", body={"model": definition, "input": "hang:", "background": True})["id"]
    walk("agents_responses_cancel", {"response_id": waiting})
    walk("agents_responses_delete", {"response_id": response})

    hook = walk("agents_webhooks_create", body={"url": "https://hooks.example.com/x", "event_types": ["agent.session.idle"]})["id"]
    which = {"webhook_endpoint_id": hook}
    walk("agents_webhooks_list")
    walk("agents_webhook_event_types")
    walk("agents_webhooks_update", which, body={"name": "ci"})
    walk("agents_webhooks_get", which)
    walk("agents_webhooks_rotate_secret", which, body={})
    walk("agents_webhooks_delete", which)
    walk("agents_vault_credentials_delete", both)
    walk("agents_vaults_delete", {"vault_id": vault})
    walk("agents_definitions_delete", {"agent_id": definition})
    walk("agents_environment_templates_delete", {"environment_template_id": template})
    refused = {n for n in ROWS if n.startswith("agents_cannot_")}
    # A WebSocket; Qwen only; needs a server that takes webhooks.
    others = {"agents_responses_connect", "agents_responses_compact", "agents_webhooks_test"}
    assert walk.done == {n for n, (row, _) in ROWS.items() if row["group"] == "agents"} - refused - others
