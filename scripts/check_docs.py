#!/usr/bin/env python3
"""Holds README.md and docs/ against the sources: what one says, the other has.

    scripts/check_docs.py            prints one line per difference; exit status 1 when there is one
    scripts/check_docs.py --write    makes docs/endpoints.md and docs/api.md anew from the table

- every endpoint of server/routes/routes.def is in the docs as `METHOD /path` (a WebSocket by its path), and every
  `METHOD /path` and every curl example of the docs is an endpoint
- every environment variable that the server reads is in the docs, and every ABX_ variable of the docs is read by it or
  by what packaging/ brings
- docs/endpoints.md and docs/api.md are what the table says
- every scope, error code (server/base/errors.def), limit and parameter of a policy (server/policy/knobs.def) and option of
  the subcommands is in the docs
- every relative link leads to a file, and its #anchor to a heading there
- every page can be reached by links from README.md
- every file of the repository that a page names is there
- the figures that README.md compares stand in docs/performance.md
"""

import pathlib
import re
import sys

import api_table

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Any program reads these, and none of them means something of ours.
COMMON_ENV = {"HOME", "PATH", "TERM"}
# Read for the libraries and programs that we bring along, not settings of ours.
FOREIGN_ENV = {"LD_LIBRARY_PATH", "UV_THREADPOOL_SIZE"}
# Endpoints that the examples of docs/ make themselves.
EXAMPLE_PATHS = ("/items/", "/ticks", "/countdown/")


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def pages() -> dict[str, str]:
    return {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8")
            for p in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}


def sources() -> str:
    return "\n".join(p.read_text(encoding="utf-8") for p in sorted((ROOT / "server").rglob("*.[ch]")))


def routes() -> list[tuple[str, str, str]]:
    """(id, method, path) of every built-in endpoint."""
    return re.findall(r'^ROUTE\((\w+), (\w+), "([^"]+)"', read("server/routes/routes.def"), re.M)


def endpoint_page() -> str:
    """docs/endpoints.md: ids, scopes, limits and parameters, as policies name them."""
    groups: dict[str, list[str]] = {}
    for row in api_table.rows():
        settings = [f"`{x}`" for x in row["limits"] + row["params"]]
        if "EP_PATHS" in row["flags"]:
            settings.append("`paths`")
        if row["rule_of"]:
            settings.append(f"and what is said of `{row['rule_of']}`")
        method = "WebSocket" if row["method"] == "WS" else row["method"]
        cells = [f"`{row['id']}`", f"`{method} {row['path']}`", ", ".join(f"`{x}`" for x in row["scopes"]), ", ".join(settings)]
        groups.setdefault(row["group"], []).append("| " + " | ".join(cells) + " |")
    page = ["# Endpoints", "",
            "Ids as policies name them, scopes that a caller needs, and what a rule may set there beside `enabled`, `scopes`, `audit` and",
            "the limits of every endpoint (`max_request_bytes`, `rate_per_minute`, `max_concurrency`). [policy.md](policy.md) says what",
            "each of them does, [api.md](api.md) what it takes and answers; `GET /capabilities` says what holds for the caller. Made by",
            "`scripts/check_docs.py --write`."]
    for group, rows in groups.items():
        off = ", off by default" if group in ("dev_tools", "browser", "agents") else ""
        page += ["", f"## Group `{group}`{off}", "", "| id | endpoint | scopes | limits, parameters |", "|---|---|---|---|", *rows]
    return "\n".join(page) + "\n"


# Pages that are made from the table.
MADE = {"docs/endpoints.md": endpoint_page, "docs/api.md": api_table.doc}


def shape(path: str) -> str:
    """A path with its parameters' names taken out: docs may call them as they like."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def said_paths(text: str) -> set[tuple[str, str]]:
    found = re.findall(r"\b(GET|POST|PUT|PATCH|DELETE)\s+(/[A-Za-z0-9_{}/.*:-]*)", text)
    return {(method, shape(path.rstrip(".:"))) for method, path in found}


def check_endpoints(docs: dict[str, str]) -> list[str]:
    text = "\n".join(body for page, body in docs.items() if page not in MADE)
    said, known = said_paths(text), {(m, shape(p)) for _, m, p in routes()}
    wrong = []
    for name, method, path in routes():
        if method == "WS":
            if not re.search(r"WebSocket.*`" + re.escape(path) + r"[`?]|`(GET )?" + re.escape(path) + r"[`?].*WebSocket", text):
                wrong.append(f"routes.def: WebSocket {path} ({name}) is not in the docs")
        elif (method, shape(path)) not in said:
            wrong.append(f"routes.def: {method} {path} ({name}) is not in the docs")
    wrong += [f"{page} is not what the table says: scripts/check_docs.py --write" for page, make in MADE.items() if docs.get(page) != make()]
    known |= {("GET", shape(p)) for _, m, p in routes() if m == "WS"}
    for page, body in docs.items():
        for method, path in sorted(said_paths(body)):
            if (method, path) not in known and not path.startswith(EXAMPLE_PATHS) and path != "/path":
                wrong.append(f"{page}: {method} {path} is no endpoint")
        wrong += [f"{page}: {path} in an example is no endpoint" for path in unknown_example_paths(body)]
    return wrong


def unknown_example_paths(text: str) -> list[str]:
    """Paths behind localhost:9000 and :9001 that no endpoint has."""
    patterns = [re.compile(re.sub(r"\\\{[^}]*\\\}", "[^/]+", re.escape(p)) + "$") for _, _, p in routes()]
    return [path for path in re.findall(r"(?:localhost|127\.0\.0\.1):900[01](/[^\s'\"?`)#]*)", text)
            if not any(p.match(path) for p in patterns) and not path.startswith(EXAMPLE_PATHS)]


def check_environment(docs: dict[str, str]) -> list[str]:
    text, code = "\n".join(docs.values()), sources()
    read_names = set(re.findall(r'\bgetenv\("([A-Z0-9_]+)"\)', code)) | set(re.findall(r'"(ABX_[A-Z0-9_]*[A-Z0-9])"', code))
    read_names |= set(re.findall(r'\benv_get\([^;]*?, "([A-Z0-9_]+)"\)', code))
    said = set(re.findall(r"\bABX_(?:SERVER|AGENTS|BROWSER|CODE_CONTEXT|COMMAND|MAX|MODULE|PTY|STATE)_[A-Z_]*[A-Z]\b", text))
    wrong = [f"server/: the environment variable {name} is not in the docs"
             for name in sorted(read_names - COMMON_ENV - FOREIGN_ENV) if not re.search(rf"\b{name}\b", text)]
    around = "\n".join(p.read_text(encoding="utf-8", errors="replace") for p in sorted((ROOT / "packaging").rglob("*")) if p.is_file())
    wrong += [f"docs: {name} is read by nothing" for name in sorted(said) if f'"{name}"' not in code and f"${name}" not in around]
    return wrong


def check_names(docs: dict[str, str]) -> list[str]:
    text = "\n".join(docs.values())
    wrong = []
    for code in re.findall(r'^ERROR\(\w+, \d+, "\w+", "(\w+)"\)', read("server/base/errors.def"), re.M):
        if f"`{code}`" not in text:
            wrong.append(f"errors.def: the code {code} is not in the docs")
    for scope in sorted(set(re.findall(r'"([a-z]+:[a-z]+)"', read("server/routes/routes.def")))):
        if not any(scope in body for page, body in docs.items() if page not in MADE):
            wrong.append(f"routes.def: the scope {scope} is not in the docs")
    policy = docs["docs/policy.md"]
    for kind, name in re.findall(r"^(LIMIT|PARAM)\((\w+),", read("server/policy/knobs.def"), re.M):
        if f"`{name}`" not in policy:
            wrong.append(f"knobs.def: {kind.lower()} {name} is not in docs/policy.md")
    for file in sorted((ROOT / "server/cli").glob("*.c")):
        for option in re.findall(r'\{"([a-z-]+)", (?:no|required)_argument', file.read_text(encoding="utf-8")):
            if option != "help" and f"--{option}" not in text:
                wrong.append(f"{file.relative_to(ROOT)}: the option --{option} is not in the docs")
    return wrong


def linked_pages() -> dict[str, str]:
    """Every page that a reader may come to: those of pages() and the others of the repository."""
    others = [*ROOT.glob("*.md"), *(ROOT / "templates").glob("*/README.md"), *(ROOT / "tests").glob("*/README.md")]
    return pages() | {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in sorted(others)}


def anchors(body: str) -> set[str]:
    """The headings of a page as anchors, the way that GitHub makes them."""
    found: dict[str, int] = {}
    for title in re.findall(r"^#+ +(.*?) *$", re.sub(r"^```.*?^```", "", body, flags=re.S | re.M), re.M):
        name = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()).replace(" ", "-")
        found[name] = found.get(name, -1) + 1
    return {name + (f"-{n}" if n else "") for name, times in found.items() for n in range(times + 1)}


def links(page: str, body: str) -> list[tuple[str, str]]:
    """(path from the root, anchor) of every relative link of a page."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", body, flags=re.S | re.M)):
        if "://" not in target and not target.startswith("mailto:"):
            path, _, anchor = target.partition("#")
            whole = (ROOT / page).parent.joinpath(path).resolve() if path else ROOT / page
            found.append((str(whole.relative_to(ROOT)) if whole.is_relative_to(ROOT) else str(whole), anchor))
    return found


def check_links(docs: dict[str, str]) -> list[str]:
    wrong, everything = [], linked_pages() | docs
    for page, body in everything.items():
        for path, anchor in links(page, body):
            if not (ROOT / path).exists():
                wrong.append(f"{page}: the link to {path} leads nowhere")
            elif anchor and anchor not in anchors(everything.get(path, "")):
                wrong.append(f"{page}: {path} has no heading #{anchor}")
    return wrong


def check_reached(docs: dict[str, str]) -> list[str]:
    everything = linked_pages() | docs
    reached, new = set(), {"README.md"}
    while new:
        reached |= new
        new = {path for page in new for path, _ in links(page, everything.get(page, ""))} - reached
        # A link to a directory leads to the README in it.
        new |= {f"{path}/README.md" for path in new if f"{path}/README.md" in everything} - reached
    return [f"{page}: no link leads here from README.md" for page in sorted(set(everything) - reached)]


def check_files(docs: dict[str, str]) -> list[str]:
    tops = "tests|server|scripts|templates|deploy|packaging|include|docs"
    tests = {p.name for top in ("tests", "templates") for p in (ROOT / top).rglob("test_*.*")}
    wrong = []
    for page, body in (linked_pages() | docs).items():
        for path in re.findall(rf"`((?:{tops})/[\w./*-]+)`", body):
            # Globs are fine; endpoints.md is told by its own check.
            if not list(ROOT.glob(path.rstrip("/"))) and not (ROOT / page).parent.joinpath(path).exists():
                wrong.append(f"{page}: there is no {path}")
        wrong += [f"{page}: there is no test file {name}" for name in re.findall(r"`(test_\w+\.(?:py|c))`", body) if name not in tests]
    return wrong


def check_figures(docs: dict[str, str]) -> list[str]:
    """README's comparison repeats what docs/performance.md has measured, and nothing else."""
    measured = docs.get("docs/performance.md", "")
    table = re.search(r"^## Measured$(.*?)(?=^## |\Z)", docs["README.md"], re.M | re.S)
    figures = re.findall(r"\| ([\d.,]+ ?[^|]*?) (?=\|)", table.group(1)) if table else []
    if not figures:
        return ["README.md: no measured figures"]
    return [f"README.md: '{f}' is not in docs/performance.md" for f in figures if not re.search(rf"(?<![\d.,]){re.escape(f)}(?!\w)", measured)]


CHECKS = (check_endpoints, check_environment, check_names, check_links, check_reached, check_files, check_figures)


def check() -> list[str]:
    docs = pages()
    return [line for one in CHECKS for line in one(docs)]


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        for made, make in MADE.items():
            (ROOT / made).write_text(make(), encoding="utf-8")
    differences = check()
    print("\n".join(differences) or "docs and sources agree")
    sys.exit(1 if differences else 0)
