"""Turns a script into a C array: embed.py NAME IN OUT."""
import sys

name, source, target = sys.argv[1:]
with open(source, "rb") as f:
    data = f.read() + b"\0"
with open(target, "w", encoding="ascii") as f:
    f.write(f"/* Made from {name}.js. */\nstatic const char {name}_js[] = {{\n")
    for at in range(0, len(data), 16):
        f.write("    " + " ".join(f"{b:#04x}," for b in data[at:at + 16]) + "\n")
    f.write("};\n")
