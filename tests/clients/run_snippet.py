"""Runs a Python block of the documentation: run_snippet.py FILE. `await` works at top level, as in `python3 -m asyncio`."""

import ast
import asyncio
import inspect
import sys

with open(sys.argv[1], encoding="utf-8") as source:
    code = compile(source.read(), sys.argv[1], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


async def main() -> None:
    result = eval(code, {"__name__": "__main__"})
    if inspect.iscoroutine(result):
        await result


asyncio.run(main())
