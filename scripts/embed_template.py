"""Makes the C table from which `abx-server init` writes: embed_template.py OUT NAME FILE [FILE...]

NAME is the template that the files come from; in them it becomes @NAME@, which init replaces. The Dockerfiles are those at the
root of the source tree with the defaults of a template that stands alone: a ready bundle, the template here.
"""
import os
import sys

def alone(name: str) -> dict[bytes, bytes]:
    return {b"ARG BUNDLE=source\n": b"ARG BUNDLE=tarball\n",
            f"ARG TEMPLATE=templates/{name}\n".encode(): b"ARG TEMPLATE=.\n"}


def content(path: str, name: str) -> bytes:
    with open(path, "rb") as f:
        data = f.read()
    if os.path.basename(path).startswith("Dockerfile"):
        for old, new in alone(name).items():
            if data.count(old) != 1:
                sys.exit(f"{path}: expected one line {old.decode().strip()}")
            data = data.replace(old, new)
    return data.replace(name.encode(), b"@NAME@")


def main() -> None:
    target, name, *paths = sys.argv[1:]
    with open(target, "w", encoding="ascii") as f:
        f.write(f"/* Made from templates/{name}. */\n")
        rows = []
        for i, path in enumerate(paths):
            data = content(path, name)
            f.write(f"static const char file_{i}[] = {{\n")
            for at in range(0, len(data) + 1, 16):
                f.write("    " + " ".join(f"{b:#04x}," for b in (data + b"\0")[at:at + 16]) + "\n")
            f.write("};\n")
            rows.append(f'    {{"{os.path.basename(path)}", file_{i}}},\n')
        f.write("static const struct template_file template_files[] = {\n" + "".join(rows) + "};\n")


main()
