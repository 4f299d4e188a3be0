"""Makes C strings of text files: embed.py OUT.c HEADER NAME=FILE ..."""

import sys

out, header, *texts = sys.argv[1:]
with open(out, "w") as c:
    c.write(f'#include "{header}"\n')
    for name, _, path in (text.partition("=") for text in texts):
        data = ", ".join(str(byte) for byte in open(path, "rb").read())
        c.write(f"\nconst char {name}[] = {{{data}, 0}};\n")
