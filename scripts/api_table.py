#!/usr/bin/env python3
"""The API as data: the rows of server/routes/routes.def together with what server/routes/api/api.py says of each.

    scripts/api_table.py c OUT.c      what GET /openapi.json is made of, compressed (the build runs this)
    scripts/api_table.py doc          docs/api.md, on stdout

Both fail when a row has no description, a description no row, or a path parameter is missing.
"""

import json
import pathlib
import re
import sys
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROUTES = ROOT / "server" / "routes"
sys.path.insert(0, str(ROUTES / "api"))
sys.dont_write_bytecode = True

import api  # noqa: E402,F401
import shapes  # noqa: E402

JSON = "application/json"
EVENTS = "text/event-stream"
STATUS = {200: "OK", 201: "Created", 202: "Accepted", 206: "A part of the file", 304: "Not changed", 400: "Bad request", 401: "No valid token",
          403: "Refused by the policy", 404: "Not there, or turned off", 408: "Too slow", 409: "In conflict with the state", 413: "Too large",
          416: "Beyond the end of the file", 426: "A WebSocket endpoint", 429: "Too often, too many", 500: "Failed", 503: "Try again",
          507: "No space left", "4XX": "Refused", "5XX": "Failed"}


def rows() -> list[dict]:
    """The table: id, method, path, group, summary, scopes, limits, params, flags, rule_of of each row."""
    table = (ROUTES / "routes.def").read_text(encoding="utf-8")
    macros = dict(re.findall(r"#define (EXEC_\w+)((?:.*\\\n)*.*)", (ROUTES / "table.c").read_text(encoding="utf-8")))
    found = []
    for entry in re.findall(r"^ROUTE\((?:[^()\"]|\"[^\"]*\"|\((?:[^()\"]|\"[^\"]*\"|\([^()]*\))*\))*\)", table, re.M):
        name, method, path, group = re.match(r'ROUTE\((\w+), (\w+), "([^"]+)", (\w+)', entry).groups()
        full = re.sub(r"EXEC_\w+", lambda m: macros[m.group()], entry)
        scopes = re.search(r"SCOPES\(([^)]*)\)", full)
        summary = re.search(r'\.summary = "([^"]*)"', full)
        also = re.search(r'rule_of = "(\w+)"', full)
        found.append({"id": name, "method": method, "path": path, "group": group.lower(), "summary": summary.group(1).rstrip(".") if summary else "",
                      "scopes": re.findall(r'"([^"]+)"', scopes.group(1)) if scopes else [], "limits": re.findall(r"LIM\((\w+)\)", full),
                      "params": re.findall(r"PAR\((\w+)\)", full), "flags": set(re.findall(r"\bEP_\w+", full)), "rule_of": also.group(1) if also else None})
    assert len(found) == len(re.findall(r"^ROUTE\(", table, re.M)), "a row of routes.def can't be read"
    return found


def described() -> list[tuple[dict, dict]]:
    table = rows()
    names = [r["id"] for r in table]
    lacking, idle = [n for n in names if n not in shapes.OPS], [n for n in shapes.OPS if n not in names]
    if lacking or idle:
        sys.exit("\n".join([f"server/routes/api/api.py: no op() for the row {n} of routes.def" for n in lacking] +
                           [f"server/routes/api/api.py: op() for {n}, which is no row of routes.def" for n in idle]))
    for row in table:
        op = shapes.OPS[row["id"]]
        if sorted(re.findall(r"\{(\w+)\}", row["path"])) != sorted(op["path"] or {}):
            sys.exit(f"server/routes/api/api.py: the path parameters of {row['id']} are not those of {row['path']}")
        if not row["summary"]:
            sys.exit(f"routes.def: {row['id']} has no summary")
    return [(row, shapes.OPS[row["id"]]) for row in table]


# --- OpenAPI -----------------------------------------------------------------------------------------------------

def takes_body(row: dict) -> bool:
    return row["method"] not in ("GET", "WS")


def errors_of(row: dict, op: dict) -> list:
    """Statuses of refusals and failures: those of the pipeline, and the endpoint's own."""
    found = {400, 403, 429, 503, *op["errors"]}
    if "EP_NO_AUTH" not in row["flags"]:
        found |= {401, 404}
    if takes_body(row):
        found |= {408, 413}
    if op["raw"] or "max_bytes" in row["limits"] or row["group"] == "browser":
        found.add(413)
    return sorted((e for e in found if isinstance(e, int)), key=int) + sorted(e for e in found if isinstance(e, str))


def parameters(op: dict) -> list[dict]:
    made = []
    for where, fields in (("path", op["path"]), ("query", op["query"]), ("header", op["headers"])):
        for name, field in (fields or {}).items():
            field = dict(field)
            one = {"name": name.rstrip("_"), "in": where, "required": where == "path" or not name.endswith("_")}
            if "description" in field:
                one["description"] = field.pop("description")
            made.append({**one, "schema": field})
    return made


def request_body(op: dict) -> dict | None:
    content = {}
    if op["body"] is not None:
        content[JSON] = {"schema": op["body"]}
    if op["raw_body"]:
        content[op["raw_body"]] = {}
    if op["form"]:
        content["multipart/form-data"] = {"schema": op["form"]}
    return {"required": op["body_needed"], "content": content} if content else None


def event_schema(events: dict) -> dict:
    """One event of the stream: its name, and JSON as data. A name that ends in * stands for all that begin so."""
    kinds = []
    for name, data in events.items():
        of_name = {"pattern": "^" + re.escape(name.removesuffix("*"))} if name.endswith("*") else {"const": name}
        kinds.append({"properties": {"event": of_name, "data": {"contentMediaType": JSON, "contentSchema": data}}})
    return {"description": "One event.", "type": "object", "required": ["event", "data"],
            "properties": {"event": {"type": "string"}, "data": {"type": "string"}, "id": {"type": "string"}}, "anyOf": kinds}


def success(op: dict) -> dict:
    """Status to response, of what is no error."""
    content = {}
    if op["answer"] is not None:
        content[JSON] = {"schema": op["answer"]}
    for kind in (op["raw"], *(op["text"] or ())):
        if kind:
            content[kind] = {}
    if op["raw"] and op["answer"] is not None:
        content["application/gzip"] = content["application/zip"] = {}
    if op["events"]:
        content[EVENTS] = {"schema": event_schema(op["events"])}
    answers = {}
    headers = {name: {"schema": {"type": "string"}} for name in op["answer_headers"] or ()}
    if content:
        answers[op["status"]] = {"description": STATUS.get(op["status"], "OK"), "content": content}
        if headers:
            answers[op["status"]]["headers"] = headers
    if op["empty"]:
        answers[op["empty"]] = {"description": STATUS[op["empty"]]}
    for status, body in (op["also"] or {}).items():
        answers[status] = {"description": STATUS[status], **({"content": {op["raw"]: {}}} if status == 206 else {})}
    if op["status"] == 101:
        answers[101] = {"description": "A WebSocket"}
    return answers


def operation(row: dict, op: dict) -> dict:
    made = {"operationId": row["id"], "summary": row["summary"], "tags": [row["group"]]}
    if op["note"]:
        made["description"] = op["note"]
    if "EP_NO_AUTH" in row["flags"]:
        made["security"] = []
    if parameters(op):
        made["parameters"] = parameters(op)
    if request_body(op):
        made["requestBody"] = request_body(op)
    answers = success(op)
    if row["method"] == "WS":
        answers[101] = {"description": "A WebSocket"}
        made["x-abx-websocket"] = True
    kind = op["error"]
    for status in errors_of(row, op):
        answers[status] = {"$ref": f"#/components/responses/{kind}{status}"}
    made["responses"] = {str(status): answer for status, answer in answers.items()}
    if row["limits"] or row["params"]:
        made["x-abx-settings"] = [*(f"limits.{x}" for x in row["limits"]), *(f"params.{x}" for x in row["params"])]
    return made


def error_response(kind: str, status) -> dict:
    schema = {"$ref": "#/components/schemas/Error"}
    if kind != "Error":
        schema = {"anyOf": [{"$ref": f"#/components/schemas/{kind}"}, schema]}
    made = {"description": STATUS[status], "content": {JSON: {"schema": schema}}}
    if status == 401:
        made["headers"] = {"WWW-Authenticate": {"required": True, "schema": {"type": "string"}}}
    if status == 429:
        made["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    if status in (405, 426):
        made["headers"] = {"Upgrade": {"schema": {"type": "string"}}}
    return made


def components(all_ops: list[tuple[dict, dict]]) -> dict:
    wanted = sorted({(op["error"], status) for row, op in all_ops for status in errors_of(row, op)}, key=str)
    return {"schemas": shapes.SCHEMAS,
            "responses": {f"{kind}{status}": error_response(kind, status) for kind, status in wanted},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"},
                                "accessToken": {"type": "apiKey", "in": "header", "name": "X-Access-Token"}}}


def c_source() -> str:
    """Texts one after the other, each with a NUL: an operation per row (without braces), components, and the answers of
    POST /commands/{name} for the commands that get a path of their own."""
    all_ops = described()
    texts = [json.dumps(operation(row, op))[1:-1] for row, op in all_ops]
    (run,) = (operation(row, op) for row, op in all_ops if row["id"] == "run_command")
    texts += [json.dumps(components(all_ops)), json.dumps(run["responses"])]
    plain = b"".join(t.encode() + b"\0" for t in texts)
    packed = zlib.compress(plain, 9)
    data = ",".join(map(str, packed))
    return ('#include "routes/openapi.h"\n#include "routes/table.h"\n\n'
            f'_Static_assert(ROUTE_COUNT == {len(all_ops)}, "made of another table");\n'
            f"const size_t openapi_plain_len = {len(plain)};\nconst size_t openapi_packed_len = {len(packed)};\n"
            f"const unsigned char openapi_packed[] = {{{data}}};\n")


# --- docs/api.md --------------------------------------------------------------------------------------------------

def type_text(schema: dict) -> str:
    if "$ref" in schema:
        return f"[{schema['$ref'].rsplit('/', 1)[1]}](#{schema['$ref'].rsplit('/', 1)[1].lower()})"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{v}`" for v in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(type_text(s) for s in schema["anyOf"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " or ".join(type_text({**schema, "type": k}) for k in kind)
    if kind == "array":
        return f"list of {type_text(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map of {type_text(schema['additionalProperties'])}"
    if kind == "object" and schema.get("properties"):
        return "{" + ", ".join(f"`{n}`" + ("" if n in schema.get("required", ()) else "?") for n in schema["properties"]) + "}"
    return kind or "any JSON"


def bounds(schema: dict) -> str:
    found = []
    if "minimum" in schema or "maximum" in schema:
        found.append(f"{schema.get('minimum', '')}..{schema.get('maximum', '')}")
    for key, text in (("maxLength", "at most {} characters"), ("maxItems", "at most {} of them"), ("pattern", "`{}`")):
        if key in schema:
            found.append(text.format(str(schema[key]).replace("|", "\\|")))
    return "; ".join(found)


def field_rows(fields: dict, required) -> list[str]:
    lines = []
    for name, field in fields.items():
        default = "required" if name in required else f"`{json.dumps(field['default'])}`" if "default" in field else ""
        meaning = "; ".join(x for x in (field.get("description", "").rstrip("."), bounds(field)) if x)
        lines.append(f"| `{name}` | {type_text(field)} | {default} | {meaning} |")
    return lines


def table_of(title: str, fields: dict, required) -> list[str]:
    return ["", f"| {title} | type | default | meaning |", "|---|---|---|---|", *field_rows(fields, required)]


def op_section(row: dict, op: dict) -> list[str]:
    method = "WebSocket" if row["method"] == "WS" else row["method"]
    lines = ["", f"### `{method} {row['path']}`", "", f"{row['summary']}{'' if row['summary'].endswith('?') else '.'} Id `{row['id']}`" +
             (f", scope {', '.join(f'`{s}`' for s in row['scopes'])}." if row["scopes"] else ", no token needed." if "EP_NO_AUTH" in row["flags"] else ".")]
    if op["note"]:
        lines += ["", op["note"]]
    for title, where in (("path", "path"), ("query", "query"), ("header", "headers")):
        if op[where]:
            fields = {n.rstrip("_"): f for n, f in op[where].items()}
            lines += table_of(title, fields, [n for n in op[where] if not n.endswith("_")])
    body = op["body"]
    if body is not None:
        if body.get("properties"):
            lines += table_of("body", body["properties"], body.get("required", ()))
        elif "$ref" in body:
            lines += ["", f"Body: {type_text(body)}."]
        else:
            lines += ["", "Body: a JSON object." + (f" {body['description']}" if body.get("description") else "")]
        extra = [x for x in (f"`{op['raw_body']}`: the raw bytes" if op["raw_body"] else "", "`multipart/form-data`" if op["form"] else "") if x]
        if extra:
            lines += ["", "Or " + ", ".join(extra) + "."]
    if op["answer"] is not None:
        answer = op["answer"]
        if answer.get("properties"):
            lines += ["", "| answer | type | meaning |", "|---|---|---|"]
            lines += [f"| `{n}`{'' if n in answer.get('required', ()) else '?'} | {type_text(f)} | {f.get('description', '').rstrip('.')} |"
                      for n, f in answer["properties"].items()]
        else:
            lines += ["", f"Answer: {type_text(answer)}."]
    kinds = [f"`{k.split(';')[0]}`" for k in (op["raw"], *(op["text"] or ())) if k]
    if kinds:
        lines += ["", ("Or " if op["answer"] is not None else "Answer: ") + ", ".join(kinds) + "."]
    if op["events"]:
        lines += ["", "Events: " + ", ".join(f"`{n}` {type_text(s)}" for n, s in op["events"].items()) + "."]
    if op["empty"]:
        lines += ["", f"Answer: {op['empty']} without a body."]
    common = (400, 401, 403, 404, 429, 503, *((408, 413) if takes_body(row) else ()))
    own = [str(e) for e in errors_of(row, op) if e not in common]
    if own:
        lines += ["", "Errors beside the common ones: " + ", ".join(own) + "."]
    settings = [f"`{x}`" for x in (*row["limits"], *row["params"], *(["paths"] if "EP_PATHS" in row["flags"] else []))]
    if row["rule_of"]:
        lines += ["", f"A policy's rules for `{row['rule_of']}` hold here too; those for `{row['id']}` come on top."]
    elif settings:
        lines += ["", "Policy: " + ", ".join(settings) + "."]
    return lines


def doc() -> str:
    all_ops = described()
    groups: dict[str, list] = {}
    for row, op in all_ops:
        groups.setdefault(row["group"], []).append((row, op))
    page = ["# API reference", "",
            "Every endpoint: parameters, body, answer, errors. `GET /openapi.json` says the same to programs, for this very server. The pages of the",
            "groups say more. Made by `scripts/check_docs.py --write` from `server/routes/routes.def` and `server/routes/api/api.py`.", "",
            "Common to all: a JSON object in, a JSON object out; `?` marks a field that may be absent; more fields may come. Errors are",
            "[Error](#error) with 400 (bad request), 401 (no valid token), 403 (refused by the policy), 404 (not there, or turned off by the policy),",
            "429 (rate or concurrency) and 503 (try again); [http.md](http.md#errors) has the codes. Where a body is taken, 408 (too slow) and 413",
            "(too large) as well. HEAD works wherever GET does."]
    for group, members in groups.items():
        off = ", off by default" if group in ("dev_tools", "browser", "agents") else ""
        page += ["", f"## Group `{group}`{off}"]
        for row, op in members:
            page += op_section(row, op)
    page += ["", "## Shapes"]
    for name, body in shapes.SCHEMAS.items():
        page += ["", f"### {name}"]
        if body.get("description"):
            page += ["", body["description"]]
        page += ["", "| field | type | meaning |", "|---|---|---|"]
        page += [f"| `{n}`{'' if n in body.get('required', ()) else '?'} | {type_text(f)} | {f.get('description', '').rstrip('.')} |"
                 for n, f in body["properties"].items()]
    return "\n".join(page) + "\n"


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "c":
        pathlib.Path(sys.argv[2]).write_text(c_source(), encoding="utf-8")
    elif sys.argv[1:] == ["doc"]:
        print(doc(), end="")
    else:
        sys.exit(__doc__)
