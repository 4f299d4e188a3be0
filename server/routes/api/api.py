"""Every built-in endpoint: parameters, body, answers, errors. One op() per row of ../routes.def, in its order.

GET /openapi.json and docs/api.md are made from this (scripts/api_table.py); a row without an op(), or an op() without a row, fails
the build. What the policy and the pipeline do for every endpoint is in scripts/api_table.py.
"""

from shapes import (SCHEMAS, anything, any_json, array, boolean, const, enum, integer, mapping, nullable, number, obj, one_of, op,
                    ref, schema, string)

# --- shared ---------------------------------------------------------------------------------------------------

schema("Error", obj("What a refusal or failure says. `type` and `code` are for programs, `error` is for people and may change.",
                    error=string("What is wrong."), type=string("Kind of error, such as ValueError."),
                    code_=string("Stable code, where there is one."), endpoint_=string("Id of the endpoint."),
                    limit_=integer("The limit that was met."), retry_after_=integer("Seconds to wait."),
                    scope_=string("The scope that is missing."), identity_=string("Who was refused."),
                    rule_=nullable(string("The policy's rule that refused it."))))
schema("AgentError", obj("Errors of the group `agents`, as OpenAI's API has them.",
                         error=obj(message=string(), type=string(), param=nullable(string("The field that is wrong.")), code=string())))

PATH = string("Relative to the base directory, or absolute within the roots. At most 4096 characters.", minLength=1)
QUERY_PATH = string("Relative to the base directory, or absolute within the roots. Exact bytes as `%FF`.", minLength=1)
SHA256 = string("SHA-256, hexadecimal.", pattern="^[0-9a-f]{64}$")
BASE64 = string("Base64: standard alphabet, padded.", contentEncoding="base64")
OCTETS = "application/octet-stream"
NO = {"default": False}

# --- core -------------------------------------------------------------------------------------------------------

op("health", obj(status=const("ok")))
op("capabilities", obj(api_version=const(2), server_version=string(), groups=mapping(boolean(), "Group to: is any of its endpoints on?"),
                       group_summary=mapping(obj(enabled=integer(), total=integer())),
                       identity=obj("Who asks.", id=string(), scopes=array(string())),
                       policy=obj(preset=string(), revision=string(), configured=boolean()),
                       endpoints=mapping(obj(method=string(), path=string(), group=string(), summary=string(), streaming=boolean(),
                                             enabled=boolean(), allowed=boolean("To this caller."), reason=nullable(string()),
                                             rule=nullable(string()), scopes=array(string()), limits_=anything(), params_=anything(),
                                             paths_=anything()), "By id."),
                       warnings=array(string())))
op("capabilities_check", obj(endpoint=string(), allowed=boolean(), code=nullable(string()), reason=nullable(string()), rule_=nullable(string())),
   body=obj(endpoint=string("Id of an endpoint.", minLength=1), path_=nullable(string("A path to judge.")), paths_=nullable(array(string())),
            op_=nullable(enum("read", "write", "delete", "exec", text="Default: what the endpoint does."))),
   note="Judges only: nothing is done and no limit is used up.")
op("openapi", obj(openapi=string(), info=anything(), paths=anything()), query=dict(all_=boolean("Also what the policy has turned off.", **NO)),
   note="This document: what this server offers under its policy, with the template's commands and routes that the caller may see.")

# --- commands ---------------------------------------------------------------------------------------------------

op("list_commands", obj(commands=array(obj(name=string(), description=string(),
                                           args=array(obj(name=string(), type=enum("string", "integer", "float", "boolean", "string_array"),
                                                          required=boolean(), default=nullable(string()), description=string()))))))
op("run_command", obj(result=any_json("What the command returned.")), path=dict(name=string("The command.", minLength=1)),
   body=anything("The command's arguments, by name. `GET /commands` lists them."), body_needed=False,
   events=dict(result=obj(result=any_json()), error=ref("Error")), errors=("4XX", 500, "5XX"),
   note="A command that streams answers with events when `Accept` names `text/event-stream`. A failing command is a 500 with its own `type`; "
        "a command may also choose an error status of its own.")

# --- file_ops -----------------------------------------------------------------------------------------------------

op("files_list", obj(entries=array(obj(name=string(), type=enum("file", "directory"), size=integer("Bytes."), modified=string("UTC."),
                                       path=string(), name_base64_=BASE64, path_base64_=BASE64)), truncated=boolean("There is more.")),
   query=dict(path=QUERY_PATH, recursive_=boolean(**NO), max_entries_=integer(default=1000)), errors=(404, 500),
   note="Sorted by bytes, a directory before what is in it. Depth 3, or the policy's `max_depth`.")
op("files_stat", obj(name=string(), path=string(), type=string("file, directory, or unknown when it is not there"), size=integer("Bytes."),
                     permissions=string("Three octal digits."), modified=string(), accessed=string(), created=string("Last change of status."),
                     exists=boolean(), name_base64_=BASE64, path_base64_=BASE64),
   query=dict(path=QUERY_PATH), errors=(500,))
op("files_mkdir", obj(path=string(), created=const(True)), body=obj(path=PATH), errors=(409, 500, 507))
op("files_delete", obj(path=string(), deleted=const(True)), query=dict(path=QUERY_PATH), errors=(404, 500))
op("files_move", obj(source=string(), destination=string()), body=obj(source=PATH, destination=PATH), errors=(404, 409, 500, 507))
op("files_search", obj(results=array(obj(name=string(), path=string(), name_base64_=BASE64, path_base64_=BASE64)), timed_out=boolean(), truncated=boolean()),
   body=obj(path=PATH, pattern=string("`*`, `?`, `[abc]`, `[!abc]` on base names.", minLength=1), max_depth_=integer(default=5),
            max_results_=integer(default=100), include_dirs_=boolean(**NO), content_=nullable(string("Only files that hold this text."))),
   errors=(404, 500))
UPLOADED = obj(path=string(), bytes=integer("Size of the file."), sha256_=SHA256)
op("files_upload_stream", UPLOADED, query=dict(path_=string("With a raw body.", minLength=1), fsync_=boolean(**NO), sha256_=boolean("Hash also above 64 MiB.", **NO)),
   body=obj(path=PATH, content_base64=BASE64, fsync_=boolean(**NO)), raw_body=OCTETS, errors=(404, 408, 409, 500, 507),
   note="The file appears whole or not at all.")
op("files_download_stream", obj(path=string(), content_base64=BASE64, bytes=integer(), sha256=SHA256), query=dict(path=QUERY_PATH),
   headers=dict(Accept_=string("`application/octet-stream` for raw bytes."), Range_=string("One range, raw only.")), raw=OCTETS, also={206: None, 304: None},
   errors=(404, 416, 500), answer_headers=("ETag", "Accept-Ranges", "Last-Modified", "Content-Disposition"))
op("files_archive", obj(content_base64=BASE64, format=enum("tar.gz", "zip"), bytes=integer(), sha256=SHA256),
   body=obj(paths=array(PATH, minItems=1), format_=enum("tar.gz", "zip", default="tar.gz")), raw=OCTETS,
   headers=dict(Accept_=string("`application/octet-stream`, `application/gzip` or `application/zip` for raw bytes.")), errors=(404, 500, 507))
op("files_watch", query=dict(path=QUERY_PATH, recursive_=boolean("Five levels.", **NO), interval_=number("Seconds, 0.1 to 5.", default=0.5),
                             timeout_=number("Seconds.", default=300)),
   events=dict(ready=obj(path=string()), change=obj(type=enum("created", "modified", "deleted", "renamed"), path=string(), is_dir=boolean(), old_path_=string()),
               overflow=obj(reason=string(), path=string()), end=obj(reason=string())), errors=(404, 500))
op("files_extract", obj(path=string(), entries=integer(), bytes=integer(), skipped=integer()),
   query=dict(path_=string("With a raw body.", minLength=1)), body=obj(path=PATH, content_base64=BASE64), raw_body=OCTETS, errors=(404, 408, 409, 500, 507),
   note="tar, tar.gz or zip. The whole archive is looked through before anything is written.")
op("files_upload", UPLOADED, query=dict(path_=string("With a raw body.", minLength=1), fsync_=boolean(**NO), sha256_=boolean("Hash also above 64 MiB.", **NO)),
   body=obj("One of `content` and `content_base64`.", path=PATH, content_=string(), content_base64_=BASE64, fsync_=boolean(**NO)), raw_body=OCTETS,
   errors=(404, 408, 409, 500, 507))
op("files_download", query=dict(path=QUERY_PATH), headers=dict(Range_=string("One range.")), raw=OCTETS, also={206: None, 304: None}, errors=(404, 416, 500),
   answer_headers=("ETag", "Accept-Ranges", "Last-Modified", "Content-Disposition"))

# --- process ------------------------------------------------------------------------------------------------------

EXEC = dict(command=string("Split into words with shell quoting, then run directly.", minLength=1), cwd_=nullable(string("Default: the base directory.")),
            env_=nullable(mapping(string(), "On top of the base environment.")), timeout_=number("Seconds; what is unusable means the default.", default=300),
            timeout_ms_=integer("Milliseconds; wins over `timeout`."), shell_=boolean("Run by `/bin/sh -c`.", **NO),
            input_=nullable(string("Standard input.")), input_base64_=nullable(BASE64), merge_stderr_=boolean(**NO),
            user_=nullable(one_of(string(), integer(), text="Only where the server runs as root.")),
            limits_=nullable(obj(memory_bytes_=nullable(integer(minimum=1)), cpu_seconds_=nullable(integer(minimum=1)), open_files_=nullable(integer(minimum=1)))))
op("shell", obj(stdout=string(), stderr=string(), exit_code=integer("0 to 255, or -signal."), truncated_=boolean()), body=obj(**EXEC), errors=(404, 500),
   note="A timeout is a 500 of type TimeoutError with the output so far.")
op("shell_stream", body=obj(**EXEC), errors=(404, 500),
   events=dict(stdout=obj(data=string(), partial_=boolean()), stderr=obj(data=string(), partial_=boolean()), error=obj(error=string()), exit=obj(exit_code=integer())))
op("process_start", obj(pid=integer(), command=string()), errors=(404, 500),
   body=obj(**EXEC, stdin_=boolean("Keep its stdin open.", **NO), capture_output_=boolean("Keep its output.", **NO)),
   note="`timeout` and `timeout_ms` mean nothing here: only a policy's limit ends it.")
PROCESS = dict(pid=integer(), command=string(), state=enum("running", "exited"), started_at=number("Unix seconds."))
PID = dict(pid=integer("Process id."))
EXIT_CODE = nullable(integer("null while it runs."))
op("process_list", obj(processes=array(obj(**PROCESS))))
op("process_detail", obj(**PROCESS, exit_code=EXIT_CODE), path=PID, errors=(404,))
op("process_signal", obj(pid=integer(), signal=integer()), path=PID, body=obj(signal=enum(2, 9, 15, 18, 20)), errors=(404,))
op("process_stdin", obj(pid=integer(), written=integer("Bytes."), closed=boolean()), path=PID, errors=(404, 409),
   body=obj("At least one of them.", data_=nullable(string()), data_base64_=nullable(BASE64), eof_=boolean("Close it after the data.", **NO)))
op("process_output", obj(pid=integer(), events=array(obj(seq=integer(), stream=enum("stdout", "stderr"), data=string(), ts=number("Unix seconds."))),
                         next=integer("Pass it as the next `since`."), state=enum("running", "exited"), exit_code=EXIT_CODE, dropped=boolean()),
   path=PID, query=dict(since_=integer(default=0), wait_=number("Seconds to wait for output, up to 30.", default=0)),
   headers={"Accept_": string("`text/event-stream`: as events."), "Last-Event-ID_": string("Where to go on.")},
   events=dict(stdout=obj(seq=integer(), data=string(), ts=number()), stderr=obj(seq=integer(), data=string(), ts=number()),
               dropped=obj(from_=integer(), to=integer()), exit=obj(exit_code=integer())), errors=(404, 409))

# --- system -------------------------------------------------------------------------------------------------------

op("system_info", obj(os=string(), arch=string(), cpu_count=integer(), memory_total_mb=integer(), memory_available_mb=integer(), disk_total_gb=number(),
                      disk_free_gb=number(), python_version=string(), hostname=string(), kernel=string(), cpu_quota=nullable(number()),
                      memory_limit_mb=nullable(integer()), base_dir=string(), base_disk_total_gb=number(), base_disk_free_gb=number()))
op("env_get", obj(variables=mapping(string())), query=dict(filter_=string("Comma list of names.")))
op("env_set", obj(updated=array(string()), removed_=array(string())), body=obj(vars_=mapping(string()), unset_=array(string())),
   note="Seen by every later child of every caller.")
op("ports", obj(listening=array(obj(port=integer(), protocol=enum("tcp", "tcp6"), address=string(), pid=nullable(integer()), process=nullable(string()), inode_=integer()))),
   errors=(500,))
op("packages", obj(manager=string(), packages=array(obj(name=string(), version=string()))),
   query=dict(manager_=enum("pip", "npm", "dpkg", "apk", "rpm", default="pip"), scope_=enum("local", "global", text="npm only.", default="local")), errors=(500,))
op("system_metrics", obj(cpu_load_1m=number(), cpu_load_5m=number(), cpu_load_15m=number(), memory_used_mb=integer(), memory_total_mb=integer(),
                         memory_percent=number(), disk_used_gb=number(), disk_total_gb=number(), disk_percent=number(), disk_free_gb=number(),
                         cpu_percent=nullable(number()), cpu_count=integer(), cpu_quota=nullable(number()), memory_limit_mb=nullable(integer()),
                         base_disk_used_gb=number(), base_disk_total_gb=number(), base_disk_percent=number(), uptime_seconds=number(),
                         sandbox_uptime_seconds=nullable(number()), process_count=integer(), processes=array(anything()), network=array(anything())), errors=(500,))
op("metrics", text=("text/plain; version=0.0.4; charset=utf-8", "application/openmetrics-text; version=1.0.0; charset=utf-8"),
   headers=dict(Accept_=string("`application/openmetrics-text` for OpenMetrics.")), note="docs/metrics.md has the families.",
   answer_headers=("Cache-Control",))

# --- browser ------------------------------------------------------------------------------------------------------

SESSION = dict(session_=nullable(string("A page of one's own.", pattern="^[A-Za-z0-9._-]{0,64}$")))
SESSION_QUERY = dict(session_=string("A page of one's own.", pattern="^[A-Za-z0-9._-]{1,64}$"))
TARGET = dict(selector_=nullable(string("CSS, `text=`, `xpath=`, ...")), ref_=nullable(string("An element of the last snapshot.")))
WAIT = dict(timeout_=number("Milliseconds.", default=28000))
BROWSER = (404, 500, 503)
op("browser_navigate", obj(url=string(), title=string(), status=integer("Of the last document; 0: there was none.")), errors=BROWSER,
   body=obj(url=string(minLength=1), wait_until_=enum("networkidle", "load", "domcontentloaded", "commit", default="networkidle"), **WAIT, **SESSION))
op("browser_screenshot", obj(image_base64=BASE64, width=integer(), height=integer(), truncated_=boolean()), errors=BROWSER,
   body=obj(**TARGET, full_page_=boolean(default=True), format_=enum("png", "jpeg", default="png"), **SESSION), body_needed=False)
op("browser_content", obj(content=string(), url=string(), title=string()), query=dict(type_=enum("html", "text", default="html"), **SESSION_QUERY), errors=BROWSER)
op("browser_click", obj(clicked=const(True), selector=string()), body=obj("`selector` or `ref`.", **TARGET, timeout_=number("Milliseconds.", default=5000), **SESSION), errors=BROWSER)
op("browser_type", obj(typed=const(True), selector=string(), text=string()), errors=BROWSER,
   body=obj("`selector` or `ref`.", **TARGET, text=string(), delay_=number("Milliseconds per character.", default=50), clear_=boolean(**NO), **WAIT, **SESSION))
op("browser_evaluate", obj(result=any_json("The script's value.")), body=obj(script=string(minLength=1), timeout_=number("Milliseconds.", default=10000), **SESSION), errors=BROWSER)
op("browser_pdf", obj(pdf_base64=BASE64, pages=integer()), body=obj(format_=nullable(string("Paper, such as `A4`.")), landscape_=boolean(**NO), **SESSION), body_needed=False, errors=BROWSER)
op("browser_console", obj(logs=array(obj(type=string(), text=string(), timestamp=number("Unix seconds."), url=string(), line=integer())), dropped=integer()),
   query=SESSION_QUERY)
op("browser_wait", obj(waited=const(True), url=string(), title=string()), errors=BROWSER,
   body=obj("One or more of `selector` or `ref`, `text`, `load_state`.", **TARGET, state_=enum("visible", "hidden", "attached", "detached", default="visible"), text_=nullable(string()),
            load_state_=enum("networkidle", "load", "domcontentloaded", "commit"), **WAIT, **SESSION))
op("browser_press", obj(pressed=const(True), key=string()), body=obj(key=string("`Enter`, `a`, `Control+Shift+ArrowLeft`.", minLength=1), **TARGET, **WAIT, **SESSION), errors=BROWSER)
op("browser_scroll", obj(scrolled=const(True), x=number(), y=number(), max_x=number(), max_y=number()), errors=BROWSER,
   body=obj("One of `selector` or `ref`, `to`, `x`, `y`.", x_=number("Pixels, relative."), y_=number(), to_=enum("top", "bottom"), **TARGET, **WAIT, **SESSION))
op("browser_cookies", obj(cookies=array(anything())), query=SESSION_QUERY, errors=BROWSER)
op("browser_cookies_set", obj(set=integer(), cleared=boolean()), errors=BROWSER,
   body=obj("One of them.", cookies_=array(obj(name=string(), value=string(), domain_=string(), url_=string())), clear_=boolean(**NO), **SESSION))
op("browser_viewport", obj(width=integer(), height=integer(), scale=number()), errors=BROWSER,
   body=obj(width=integer(minimum=1, maximum=8192), height=integer(minimum=1, maximum=8192), scale_=number(minimum=0.1, maximum=4, default=1), **SESSION))
op("browser_snapshot", obj(url=string(), title=string(), snapshot=string(), refs=integer(), truncated=boolean()), query=SESSION_QUERY, errors=BROWSER)
op("browser_sessions", obj(running=boolean(), program=string(), product=string(), sessions=array(anything())), errors=(500, 503))
op("browser_session_delete", obj(session=string(), closed=const(True)), query=SESSION_QUERY, errors=(404, 500))
DEVTOOLS = {"type": "object", "properties": {"Browser": string(), "Protocol-Version": string(), "User-Agent": string(), "webSocketDebuggerUrl": string()},
            "required": ["Browser", "webSocketDebuggerUrl"]}
op("browser_cdp_version", DEVTOOLS, errors=BROWSER)
op("browser_json_version", DEVTOOLS, errors=BROWSER)
op("browser_cdp", errors=(426, 500, 503), note="A WebSocket: DevTools protocol, JSON text frames.")

# --- terminal -----------------------------------------------------------------------------------------------------

TERMINAL = obj(id=string(), pid=integer(), created_at=number("Unix seconds."), cols=integer(), rows=integer(), alive=boolean(), clients=integer())
TERMINAL_ID = dict(id=string("Session id.", minLength=1))
op("pty_create_session", obj(session_id=string(), ws_url=string(), pid=integer()), errors=(500,), body_needed=False,
   body=obj(shell_=enum("/bin/bash", "/bin/sh", "/bin/zsh", "/usr/bin/bash", "/usr/bin/zsh", default="/bin/bash"),
            cols_=integer(default=80, minimum=0, maximum=1000), rows_=integer(default=24, minimum=0, maximum=1000), env_=nullable(mapping(string()))))
op("pty_list_sessions", obj(sessions=array(TERMINAL)))
op("pty_detail", TERMINAL, path=TERMINAL_ID, errors=(404,))
op("pty_resize", obj(), path=TERMINAL_ID, body=obj(cols=integer(minimum=1, maximum=1000), rows=integer(minimum=1, maximum=1000)), errors=(404,))
op("pty_delete_session", obj(status=const("closed"), session_id=string()), path=TERMINAL_ID, errors=(404,))
op("pty_connect", query=dict(session_id_=string(), replay_=enum(0, 1, default=1), since_=integer("Where to go on."), output_=enum("text", "binary"),
                             token_=string("Where no header can be set.")), errors=(426,),
   note="A WebSocket; docs/terminal.md has the messages. Refusals come after the handshake, as close codes.")

# --- dev_tools ----------------------------------------------------------------------------------------------------

op("git_status", obj(branch=string(), clean=boolean(), detached=boolean(), upstream=nullable(string()), ahead=integer(), behind=integer(), head=nullable(string()),
                     files=array(obj(path=string(), name=string(), status=string(), index=string(), worktree=string(), old_path_=string(), conflict_=boolean(),
                                     name_base64_=BASE64)), truncated_=boolean()),
   query=dict(path_=string("Default: the first root.")), errors=(404, 408, 500))
op("git_diff", obj(diff=string(), stats=obj(files_changed=integer(), insertions=integer(), deletions=integer()), truncated_=boolean()),
   query=dict(path_=string("Default: the first root."), staged_=boolean("Index against HEAD.", **NO), file_=string("A name below `path`.")), errors=(404, 408, 500))

# --- agents -------------------------------------------------------------------------------------------------------

def listed(rows):
    return obj(object=const("list"), data=array(rows), first_id=nullable(string()), last_id=nullable(string()), has_more=boolean())


def agents(name, answer=None, **more):
    op(f"agents_{name}", answer, error="AgentError", errors=(404, 409, *more.pop("errors", ())), answer_headers=("X-Agent-Sandbox-Local",), **more)


def deleted(kind):
    return obj(id=string(), object=const(kind), deleted=const(True))


def ids(*names):
    return {name: string(minLength=1) for name in names}


LIST = dict(limit_=integer(minimum=1, maximum=100, default=20), order_=enum("asc", "desc", default="desc"), after_=string("An id of the list."))
TEXT = nullable(string())
TIME = integer("Unix seconds.")
MAYBE_TIME = nullable(integer("Unix seconds."))
METADATA = nullable(mapping(string(maxLength=512), "At most 16 pairs, keys of up to 64 characters."))
USAGE = nullable(obj(input_tokens=integer(), output_tokens=integer(), total_tokens=integer()))
schema("AgentSettings", obj(model_=string(maxLength=256), name_=TEXT, instructions_=TEXT, metadata_=METADATA, reasoning_=nullable(anything()), tools_=nullable(array(anything())),
                            multi_agent_=nullable(anything()), service_tier_=TEXT, text_=nullable(anything()), adapter_=TEXT, runtime_=TEXT))
schema("AgentSession", obj(id=string(), object=const("agent.session"), agent=anything(), created_at=TIME, environment=anything(), error=const(None), last_active_at=TIME,
                           metadata=mapping(string()), required_actions=array(anything()), status=enum("idle", "in_progress"), usage=USAGE, vault_ids=array(string())))
schema("AgentTurn", obj(id=string(), object=const("agent.session.turn"), agent_id=TEXT, session_id=string(), status=enum("queued", "in_progress", "completed", "failed", "cancelled"),
                        created_at=TIME, started_at=MAYBE_TIME, completed_at=MAYBE_TIME, error=nullable(obj(code=string(), message=string())), subagent_id=TEXT, usage=USAGE))
schema("AgentItem", obj("A message, reasoning, command_execution, mcp_call, or tool_call of a subagent.", id=string(), turn_id=string(), type=string(), status_=string()))
schema("AgentDefinition", obj(id=string(), object=const("agent"), created_at=TIME, updated_at=TIME, name=TEXT, model=string(), instructions=TEXT, metadata=mapping(string()), tools=array(anything())))
schema("AgentEnvironment", obj(id=string(), object=const("agent.environment"), type=const("self_hosted"), status=const("ready"), files=array(anything()), workspace_directory=string(),
                               vault_ids=array(string()), created_at=TIME))
schema("AgentTemplate", obj(id=string(), object=const("agent.environment.template"), created_at=TIME, updated_at=TIME, name=TEXT, files=array(anything())))
schema("AgentArtifact", obj(id=string(), object=const("agent.session.artifact"), created_at=TIME, environment_id=TEXT, path=string(), session_id=string(), size_bytes=integer(), turn_id=string()))
schema("AgentSubagent", obj(id=string(), object=const("agent.session.subagent"), session_id=string(), name=TEXT, opened_at=MAYBE_TIME, closed_at=MAYBE_TIME, status=enum("active", "closed")))
schema("Vault", obj(id=string(), object=const("vault"), created_at=TIME, metadata=mapping(string()), name=TEXT))
schema("VaultCredential", obj(id=string(), object=const("vault.credential"), vault_id=string(), name=string(), metadata=mapping(string()), auth=anything("Never the secret."), created_at=TIME, updated_at=TIME))
schema("Response", obj(id=string(), object=const("response"), created_at=TIME, completed_at=MAYBE_TIME, status=enum("queued", "in_progress", "completed", "failed", "cancelled", "incomplete"),
                       background=boolean(), error=nullable(anything()), model=string(), output=array(anything()), previous_response_id=TEXT, store=boolean(), usage=USAGE))
schema("Model", obj(id=string(), object=const("model"), created=TIME, owned_by=string()))
schema("WebhookEndpoint", obj(id=string(), object=const("webhook_endpoint"), created_at=TIME, updated_at=TIME, event_types=array(string()), name=string(), url=string(),
                              signing_secret_hint_=TEXT, signing_secret_=string("At create and rotate only.")))
ENVIRONMENT_FILE = obj(object=const("agent.environment.file"), environment_id=string(), path=string(), size_bytes=integer())
ENVIRONMENT_FIELDS = dict(env_=nullable(mapping(string())), files_=nullable(array(anything())))
SESSION_ID, TURN, SUB = ids("id"), ids("id", "turn_id"), ids("id", "subagent_id")
EVENTS = {"agent.*": obj("The objects of the REST endpoints, as they change; docs/agents.md.", type=string(), event_id=string())}
REFUSED = dict(note="Only a hosted service could answer: always 404 `agents.not_implemented_locally`.", status=None)

agents("sessions_create", ref("AgentSession"), headers={"X-ABX-Adapter_": string("The runtime.")}, body_needed=False,
       body=obj(agent_=nullable(ref("AgentSettings")), agent_id_=TEXT, model_=TEXT, environment_=nullable(anything()), vault_ids_=nullable(array(string(), maxItems=16)),
                metadata_=METADATA, input_=any_json("Text of the first turn."), adapter_=TEXT, runtime_=TEXT), errors=(500, 507))
agents("sessions_list", listed(ref("AgentSession")), query=dict(**LIST, agent_id_=string()))
agents("runtimes_list", listed(obj(id=string(), object=const("agent.runtime"), name=string(), installed=boolean(), implemented=boolean(), version=TEXT)), query=LIST)
agents("environment_templates_create", ref("AgentTemplate"), body=obj(name_=TEXT, **ENVIRONMENT_FIELDS), body_needed=False, errors=(500, 507))
agents("environment_templates_list", listed(ref("AgentTemplate")), query=LIST)
agents("environment_templates_get", ref("AgentTemplate"), path=ids("environment_template_id"))
agents("environment_templates_update", ref("AgentTemplate"), path=ids("environment_template_id"), body=obj(name_=TEXT, **ENVIRONMENT_FIELDS), body_needed=False, errors=(500, 507))
agents("environment_templates_delete", deleted("agent.environment.template.deleted"), path=ids("environment_template_id"), errors=(500, 507))
agents("environments_create", ref("AgentEnvironment"), errors=(500, 507),
       body=obj(environment=obj(type_=string(), workspace_directory_=string(), environment_template_id_=TEXT, **ENVIRONMENT_FIELDS), vault_ids_=nullable(array(string()))))
agents("environments_list", listed(ref("AgentEnvironment")), query=dict(**LIST, type_=string()))
agents("environments_get", ref("AgentEnvironment"), path=ids("environment_id"))
agents("environment_files_create", ENVIRONMENT_FILE, path=ids("environment_id"), errors=(500, 507),
       body=obj(type=enum("inline", "file_id"), path=string(minLength=1), data_=BASE64, file_id_=string()))
agents("environment_files_list", obj(object=const("list"), data=array(ENVIRONMENT_FILE), has_more=boolean(), next_=TEXT), path=ids("environment_id"),
       query=dict(limit_=integer(minimum=1, maximum=100, default=20), order_=enum("asc", "desc", default="desc"), path_=string(), page_=string()), errors=(500,))
agents("cannot_executor_registration", path=ids("environment_id"), body=anything(), body_needed=False, **REFUSED)
agents("cannot_executor_channel", path=ids("environment_id"), **REFUSED)
agents("sessions_get", ref("AgentSession"), path=SESSION_ID)
agents("sessions_update", ref("AgentSession"), path=SESSION_ID, body=obj(metadata_=METADATA), body_needed=False, errors=(500, 507))
agents("sessions_delete", deleted("agent.session.deleted"), path=SESSION_ID, errors=(500, 507))
agents("sessions_events_create", path=SESSION_ID, empty=202, headers={"Idempotency-Key_": string(maxLength=128)}, errors=(500, 507),
       body=obj("`events` or `input`.", events_=array(obj(type=string())), input_=any_json("Text of the next turn.")))
agents("sessions_events_stream", path=SESSION_ID, events=EVENTS, query=dict(after_=string("A sequence number or an event id; 0 replays all.")),
       headers={"Last-Event-ID_": string()})
agents("sessions_items_list", listed(ref("AgentItem")), path=SESSION_ID, query=LIST)
agents("sessions_turns_list", listed(ref("AgentTurn")), path=SESSION_ID, query=LIST)
agents("sessions_turns_get", ref("AgentTurn"), path=TURN)
agents("sessions_turns_items_list", listed(ref("AgentItem")), path=TURN, query=LIST)
agents("artifacts_list", listed(ref("AgentArtifact")), path=SESSION_ID, query=dict(**LIST, environment_id_=string()))
agents("artifacts_get", ref("AgentArtifact"), path=ids("id", "artifact_id"))
agents("artifacts_delete", deleted("agent.session.artifact.deleted"), path=ids("id", "artifact_id"), errors=(500, 507))
agents("artifacts_content", path=ids("id", "artifact_id"), raw=OCTETS, errors=(500,))
agents("traces_list", listed(obj(id=string(), object=const("agent.session.trace"), created_at=TIME, session_id=string(), otlp=anything())), path=SESSION_ID, query=LIST)
agents("subagents_list", listed(ref("AgentSubagent")), path=SESSION_ID, query=LIST)
agents("subagents_get", ref("AgentSubagent"), path=SUB)
agents("subagents_items_list", listed(ref("AgentItem")), path=SUB, query=LIST)
agents("subagents_turns_list", listed(ref("AgentTurn")), path=SUB, query=LIST)
agents("subagents_turns_get", ref("AgentTurn"), path=ids("id", "subagent_id", "turn_id"))
agents("subagents_turns_items_list", listed(ref("AgentItem")), path=ids("id", "subagent_id", "turn_id"), query=LIST)
agents("definitions_create", ref("AgentDefinition"), body=ref("AgentSettings"), errors=(500, 507))
agents("definitions_list", listed(ref("AgentDefinition")), query=LIST)
agents("definitions_get", ref("AgentDefinition"), path=ids("agent_id"))
agents("definitions_update", ref("AgentDefinition"), path=ids("agent_id"), body=ref("AgentSettings"), body_needed=False, errors=(500, 507))
agents("definitions_delete", deleted("agent.deleted"), path=ids("agent_id"), errors=(500, 507))
VAULT_FILTER = {**LIST, "status_": string()}
agents("vaults_create", ref("Vault"), body=obj(name_=TEXT, metadata_=METADATA), body_needed=False)
agents("vaults_list", listed(ref("Vault")), query=VAULT_FILTER)
agents("vaults_get", ref("Vault"), path=ids("vault_id"))
agents("vaults_update", ref("Vault"), path=ids("vault_id"), body=obj(name_=TEXT, metadata_=METADATA), body_needed=False)
agents("vaults_delete", deleted("vault.deleted"), path=ids("vault_id"))
CREDENTIAL = ids("vault_id", "credential_id")
agents("vault_credentials_create", ref("VaultCredential"), path=ids("vault_id"),
       body=obj(name=string(), metadata_=METADATA, auth=obj(type=enum("static_bearer", "mcp_oauth"), mcp_server_url=string(), token_=string(), access_token_=string(),
                                                            expires_at_=TEXT, networking_=nullable(anything()))))
agents("vault_credentials_list", listed(ref("VaultCredential")), path=ids("vault_id"), query=VAULT_FILTER)
agents("vault_credentials_get", ref("VaultCredential"), path=CREDENTIAL)
agents("vault_credentials_update", ref("VaultCredential"), path=CREDENTIAL, body=obj(metadata_=METADATA, auth_=anything()), body_needed=False)
agents("vault_credentials_delete", deleted("vault.credential.deleted"), path=CREDENTIAL)
RESPONSE_EVENTS = {"response.*": obj("Events of OpenAI's Responses API.", type=string(), sequence_number=integer())}
agents("responses_create", ref("Response"), events=RESPONSE_EVENTS, headers={"Idempotency-Key_": string(maxLength=128), "X-ABX-Adapter_": string("The runtime.")}, errors=(500, 507),
       body=obj(model=string(), input=any_json("Text, or a list of messages."), instructions_=TEXT, tools_=nullable(array(anything())), previous_response_id_=TEXT,
                store_=nullable(boolean()), background_=nullable(boolean()), stream_=nullable(boolean()), metadata_=METADATA, reasoning_=nullable(anything())))
agents("responses_connect", headers=dict(Upgrade_=const("websocket")), note="A WebSocket; without an upgrade 400 `agents.websocket_upgrade_required`.", status=101)
agents("cannot_responses_input_tokens", body=anything(), body_needed=False, **REFUSED)
agents("responses_compact", obj(id=string(), object=const("response.compaction"), created_at=TIME, output=array(anything()), usage=USAGE), errors=(500, 507),
       body=obj(model_=TEXT, previous_response_id_=TEXT, adapter_=TEXT, runtime_=TEXT))
agents("responses_get", ref("Response"), path=ids("response_id"), query=dict(stream_=string(), starting_after_=string()), events=RESPONSE_EVENTS)
agents("responses_delete", deleted("response"), path=ids("response_id"), errors=(500, 507))
agents("responses_cancel", ref("Response"), path=ids("response_id"), body=anything(), body_needed=False)
agents("responses_input_items", listed(obj(id=string(), type=string(), role=string(), content=array(anything()))), path=ids("response_id"), query=LIST)
agents("models_list", obj(object=const("list"), data=array(ref("Model"))))
agents("models_get", ref("Model"), path=ids("model"))
agents("cannot_models_delete", path=ids("model"), **REFUSED)
agents("files_create", obj(id=string(), object=const("file"), bytes=integer(), created_at=TIME, filename=string(), purpose=string(), status=string(), expires_at=MAYBE_TIME),
       body=obj(purpose=const("user_data"), data_=BASE64, file_=BASE64, filename_=string()), form=obj(purpose=const("user_data"), file=string(format="binary"), filename_=string()),
       errors=(500, 507))
WEBHOOK = ids("webhook_endpoint_id")
EVENT_TYPES = array(enum("agent.session.created", "agent.session.in_progress", "agent.session.idle", "agent.session.failed"), minItems=1)
agents("webhooks_create", ref("WebhookEndpoint"), body=obj(url=string(), event_types=EVENT_TYPES, name_=string(maxLength=256)), errors=(500, 507))
agents("webhooks_list", listed(ref("WebhookEndpoint")), query=LIST)
agents("webhook_event_types", obj(object=const("list"), data=array(string())))
agents("webhooks_get", ref("WebhookEndpoint"), path=WEBHOOK)
agents("webhooks_update", ref("WebhookEndpoint"), path=WEBHOOK, body=obj(url_=string(), event_types_=EVENT_TYPES, name_=string(maxLength=256)), body_needed=False, errors=(500, 507))
agents("webhooks_delete", deleted("webhook_endpoint.deleted"), path=WEBHOOK, errors=(500, 507))
agents("webhooks_rotate_secret", ref("WebhookEndpoint"), path=WEBHOOK, body=anything(), body_needed=False, errors=(500, 507))
agents("webhooks_test", obj(object=const("webhook_endpoint.test"), event_type=string(), status_code=integer(), success=boolean(), webhook_endpoint_id=string()), path=WEBHOOK,
       body=obj(event_type=string()))

# --- developer tools: code --------------------------------------------------------------------------------------------

op("code_run", obj(stdout=string(), stderr=string(), exit_code=integer(), language=string(), execution_time_ms=number(), truncated_=boolean(), context_id_=string(), result_=nullable(string()),
                   results_=array(anything()), context_ended_=boolean()), errors=(404, 408, 409, 500),
   body=obj(code=string("The program.", minLength=1), language_=string(default="python"), timeout_=number("Seconds, at most 300.", default=30), cwd_=nullable(string()),
            env_=nullable(mapping(string())), stdin_=nullable(string()), args_=nullable(array(string(), maxItems=256)), context_id_=nullable(string(pattern="^[A-Za-z0-9._-]{1,64}$")),
            reset_=boolean(**NO)))
