"""How endpoints are described: schemas of JSON Schema 2020-12, and op(), one call per row of ../routes.def.

A field is a schema; in obj() a name that ends in "_" is optional (the underscore is not part of it). Answers hold what
clients may rely on: objects are open, more fields may come.
"""

OPS: dict[str, dict] = {}
SCHEMAS: dict[str, dict] = {}


def _type(name):
    def make(text="", **more):
        schema = {"type": name}
        if text:
            schema["description"] = text
        schema.update({k.rstrip("_"): v for k, v in more.items()})
        return schema
    return make


string, integer, number, boolean, anything = (_type(n) for n in ("string", "integer", "number", "boolean", "object"))


def any_json(text=""):
    return {"description": text} if text else {}


def enum(*values, text="", **more):
    kinds = {"string" if isinstance(v, str) else "integer" for v in values}
    (kind,) = kinds
    return {"type": kind, "enum": list(values), **({"description": text} if text else {}), **more}


def const(value):
    return {"const": value}


def array(items, text="", **more):
    return {"type": "array", "items": items, **({"description": text} if text else {}), **more}


def mapping(values, text=""):
    return {"type": "object", "additionalProperties": values, **({"description": text} if text else {})}


def ref(name, text=""):
    return {"$ref": f"#/components/schemas/{name}", **({"description": text} if text else {})}


def nullable(schema):
    if isinstance(schema.get("type"), str) and "enum" not in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def obj(text="", /, **fields):
    schema = {"type": "object"}
    if text:
        schema["description"] = text
    need = [name for name in fields if not name.endswith("_")]
    if fields:
        schema["properties"] = {name.rstrip("_"): field for name, field in fields.items()}
    if need:
        schema["required"] = need
    return schema


def one_of(*schemas, text=""):
    return {"anyOf": list(schemas), **({"description": text} if text else {})}


def schema(name, body):
    SCHEMAS[name] = body
    return ref(name)


def op(name, answer=None, *, query=None, path=None, headers=None, body=None, body_needed=True, raw_body=None, form=None,
       raw=None, events=None, text=None, errors=(), status=200, empty=None, also=None, error="Error", note="", example=None,
       answer_headers=None):
    """name: the row's id.
    answer: schema of the JSON answer; raw: media type of a plain one beside or instead of it; events: of an event stream,
    name to data schema; text: list of media types of a text answer. status: of a success; empty: status of one without
    body; also: {status: schema} further JSON answers. query, path, headers: name (ending in "_": optional) to schema.
    body: schema of the JSON body; raw_body: media type of a raw one beside it; form: schema of multipart/form-data.
    errors: statuses that only this endpoint has; those of every endpoint are added. note: further text.
    """
    assert name not in OPS, name
    OPS[name] = {k: v for k, v in locals().items() if k != "name"}
