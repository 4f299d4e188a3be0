"""The code blocks of the documentation, and the bash program that runs those of one page in order.

A block's tag says what becomes of it (CONTRIBUTING.md, "Documentation", has the rules for authors):

    sh        run as it is; every command must succeed
    console   `$ command` lines are run, the lines below each are its output: `...` in a line is any text, a line `...` any lines
    python    run, with `await` at top level
    c         compiled with the other C blocks of the page and loaded as a template's commands
    json yaml must parse; a policy must be accepted
    text      neither run nor read

An HTML comment right above a block changes that: `not run: REASON`, `file: NAME`, `first: COMMANDS`, `needs: PROGRAM`,
`shape`, `from: FILE`.
"""

import dataclasses
import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).resolve().parents[2]
TAGS = {"sh", "console", "python", "c", "json", "yaml", "text"}
SETTINGS = {"not run", "file", "first", "needs", "shape", "from"}
REASONS = {"needs a container engine", "needs a cluster", "needs the network", "needs a key of a model provider",
           "needs a proxy", "changes the system", "takes minutes"}
SHELL_LIKE = re.compile(r"^\s*(\$ |(sudo|curl|make|abx-server|agent-sandbox-server|docker|kubectl|systemctl|cc|gcc|export|python3?|pip|npm|apt|"
                        r"apt-get|tar|ln|git|meson|ninja|scripts/|tests/|\./)\b(?! —| –| ─).*(\s-|/|\s\S+$))", re.M)


@dataclasses.dataclass
class Block:
    page: str
    line: int
    tag: str
    text: str
    settings: dict[str, str]

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


@dataclasses.dataclass
class Step:
    """One thing that the page's shell does: `code` is bash, `expected` what it prints (None: anything)."""

    where: str
    code: str
    expected: str | None = None
    shape: bool = False


def names() -> list[str]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "templates").glob("*/README.md")]
    return sorted(str(p.relative_to(ROOT)) for p in found)


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks_of(page: str, text: str) -> list[Block]:
    """Raises ValueError for what escapes the rules: no known tag, a setting or reason nobody knows, shell in `text`."""
    found, settings, inside, body, lines = [], {}, None, [], text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if inside is None and re.match(r"\s*(```|~~~)", line):
            fence = re.match(r"( *)```(\w*)$", line)
            if not fence:
                raise ValueError(f"{page}:{number}: a fence is three backquotes and a tag")
            inside, body = Block(page, number, fence.group(2), "", settings), []
            indent, settings = len(fence.group(1)), {}
        elif inside is not None and re.match(r"\s*```\s*$", line):
            inside.text = "\n".join(body) + "\n"
            found.append(inside)
            inside = None
        elif inside is not None:
            body.append(line[indent:] if not line[:indent].strip() else line)
        elif line.startswith("<!--"):
            comment = line
            while "-->" not in comment and number < len(lines):
                comment += "\n" + lines[number]
                number += 1
            name, _, value = comment.removeprefix("<!--").partition("-->")[0].strip().partition(":")
            if name not in SETTINGS:
                raise ValueError(f"{page}:{number}: the setting '{name}' is none of {sorted(SETTINGS)}")
            settings[name] = value.strip()
        else:
            if settings:
                raise ValueError(f"{page}:{number}: settings stand right above a block")
            if re.match(r"(    |\t)[^\s|*-]", line) and number > 1 and not lines[number - 2].strip():
                raise ValueError(f"{page}:{number}: blocks are fenced, not indented")
    if inside is not None:
        raise ValueError(f"{inside.where}: the block has no end")
    for block in found:
        if block.tag not in TAGS:
            raise ValueError(f"{block.where}: the tag '{block.tag}' is none of {sorted(TAGS)}")
        if block.tag == "text" and SHELL_LIKE.search(block.text):
            raise ValueError(f"{block.where}: this looks like shell, so tag it sh or console")
        if "not run" in block.settings and block.settings["not run"] not in REASONS:
            raise ValueError(f"{block.where}: the reason '{block.settings['not run']}' is none of {sorted(REASONS)}")
        if "not run" in block.settings and block.tag not in ("sh", "console", "python"):
            raise ValueError(f"{block.where}: only what runs can be marked as not run")
    return found


def commands(block: Block) -> list[tuple[str, str]]:
    """(command, output) of a console block."""
    pairs: list[tuple[list[str], list[str]]] = []
    more = False
    for line in block.text.splitlines():
        if more or line.startswith("$ "):
            if more:
                pairs[-1][0].append(line.removeprefix("> "))
            else:
                pairs.append(([line[2:]], []))
            more = line.endswith("\\")
        elif pairs:
            pairs[-1][1].append(line)
        else:
            raise ValueError(f"{block.where}: a console block begins with `$ `")
    return [("\n".join(command), "\n".join(output)) for command, output in pairs]


def shell_text(block: Block) -> str:
    """The commands of a block, without the output that it shows."""
    return "\n".join(c for c, _ in commands(block)) if block.tag == "console" else block.text


class Place:
    """A page's own folder and ports, and its words for them: localhost:9000, localhost:9001, port 3000, /home/user."""

    def __init__(self, folder: pathlib.Path, ports: list[int]) -> None:
        self.folder, self.home, self.out = folder, folder / "user", folder / "out"
        self.port, self.pty_port, self.other_port = ports
        for each in (self.home, self.out):
            each.mkdir()

    def inward(self, text: str) -> str:
        for said, port in ((9000, self.port), (9001, self.pty_port), (3000, self.other_port)):
            text = re.sub(rf"(?<![\d.]){said}(?!\d)", str(port), text)
        return re.sub(r"/home/user\b", str(self.home), text.replace("localhost:", "127.0.0.1:"))

    def outward(self, text: str) -> str:
        for said, port in ((9000, self.port), (9001, self.pty_port), (3000, self.other_port)):
            text = re.sub(rf"(?<!\d){port}(?!\d)", str(said), text)
        return text.replace(str(self.home), "/home/user").replace("127.0.0.1:", "localhost:")


def starts_server(text: str) -> bool:
    return bool(re.search(r"\babx-server serve\b|\bmake (run|serve)\b", text))


def steps_of(blocks: list[Block], place: Place, python: str) -> list[Step]:
    """What runs, in order. A page that starts no server finds one that serves the model template from /home/user."""
    steps, started, written = [], False, set()
    for block in blocks:
        first = block.settings.get("first")
        runs = block.tag in ("sh", "console", "python") and "not run" not in block.settings
        text = (first or "") + "\n" + (block.text if runs and "file" not in block.settings else "")
        if not started and starts_server(text):
            started = True
        elif not started and re.search(r"(localhost|127\.0\.0\.1):900[01]", text):
            steps.append(Step(block.where, 'abx-server serve --commands "$MODEL_COMMANDS"'))
            started = True
        if first:
            steps.append(Step(block.where, place.inward(first)))
        if "file" in block.settings:
            source = place.out / f"file-{block.line}"
            source.write_text(place.inward(block.text), encoding="utf-8")
            name = block.settings["file"]  # a second block of that name goes behind the first
            steps.append(Step(block.where, f"cat {shlex.quote(str(source))} {'>>' if name in written else '>'} {shlex.quote(name)}"))
            written.add(name)
        elif runs and block.tag == "sh":
            steps.append(Step(block.where, place.inward(block.text)))
        elif runs and block.tag == "console":
            for command, output in commands(block):
                code = place.inward(command)
                # An error that is shown is what should happen.
                code = f"{{ {code}\n}} || true" if '"error"' in output else code
                steps.append(Step(block.where, code, output, "shape" in block.settings))
        elif runs and block.tag == "python":
            source = place.out / f"python-{block.line}"
            source.write_text(place.inward(block.text), encoding="utf-8")
            runner = pathlib.Path(__file__).with_name("run_snippet.py")
            steps.append(Step(block.where, shlex.join([python, str(runner), str(source)])))
    return steps


PRELUDE = r"""
set -eE -o pipefail
stop_server() {
    if [ -n "${server:-}" ]; then
        kill -TERM -- "-$server" 2>>"$OUT/shell.log" || true
        wait "$server" || true
        server=
    fi
}
in_background() { # what a reader would leave running in another terminal; comes back when it answers
    stop_server
    setsid "$@" >>"$OUT/server.log" 2>&1 &
    server=$!
    echo "$server" >>"$OUT/servers"
    until "$BIN/abx-server" healthcheck; do
        if ! kill -0 "$server" 2>>"$OUT/shell.log"; then
            status=0
            wait "$server" || status=$?
            server=
            { echo "the server did not start, status $status:"; tail -5 "$OUT/server.log"; } >&2
            return $((status == 0 ? 1 : status))
        fi
        sleep 0.02
    done
}
abx-server() {
    case "${1:-}" in
    serve) for word; do [ "$word" != --help ] || { "$BIN/abx-server" "$@"; return; }; done; in_background "$BIN/abx-server" "$@" ;;
    *) "$BIN/abx-server" "$@" ;;
    esac
}
make() {
    case " $* " in
    *" run "* | *" serve "*) in_background make "$@" ;;
    *) command make "$@" ;;
    esac
}
"""


def program(steps: list[Step], cwd: pathlib.Path) -> str:
    """The bash program of a page. It leaves N.out, N.err for each step and N.done for each that succeeded."""
    text = PRELUDE + f"cd {shlex.quote(str(cwd))}\n"
    for number, step in enumerate(steps):
        text += f'{{\n{step.code}\n}} >"$OUT/{number}.out" 2>"$OUT/{number}.err"\n: >"$OUT/{number}.done"\n'
    return text + "stop_server\n"


def one_line(text: str) -> str:
    """Blanks and line breaks count as one blank, and not at all where a page breaks a long JSON text."""
    return re.sub(r"([\[{]) ", r"\1", " ".join(text.split()))


def fits(expected: str, printed: str) -> bool:
    """Whether the output is the one shown; `...` is anything."""
    parts = [re.escape(one_line(part)) for part in expected.split("...")]
    return re.fullmatch(r"\s*.*?\s*".join(parts), one_line(printed), re.S) is not None


def same_shape(expected, got, where: str = "") -> str | None:
    """None when `got` has the keys and the types of `expected`, else what differs. null fits any value."""
    if expected is None or got is None:
        return None
    if isinstance(expected, bool) or isinstance(got, bool) or not isinstance(expected, (int, float)):
        if type(expected) is not type(got):
            return f"{where or 'the answer'}: {type(got).__name__}, shown is {type(expected).__name__}"
    elif not isinstance(got, (int, float)):
        return f"{where or 'the answer'}: no number"
    if isinstance(expected, dict):
        if set(expected) != set(got):
            return f"{where or 'the answer'}: keys {sorted(set(expected) ^ set(got))} are not on both sides"
        return next((w for k in expected if (w := same_shape(expected[k], got[k], f"{where}.{k}"))), None)
    if isinstance(expected, list) and expected:
        return next((w for g in got if (w := same_shape(expected[0], g, f"{where}[]"))), None)
    return None
