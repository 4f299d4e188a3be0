"""The Python part of the template: `python3 helper.py FUNCTION` reads the arguments as JSON, prints the result as JSON."""

import collections
import json
import re
import sys


def describe(text: str, top: int) -> dict:
    if top < 1:
        raise ValueError("top must be at least 1")
    words = re.findall(r"\w+", text.lower())
    return {
        "words": len(words),
        "lines": len(text.splitlines()),
        "most": [{"word": word, "times": times} for word, times in collections.Counter(words).most_common(top)],
    }


FUNCTIONS = {"describe": describe}


def main() -> int:
    try:
        result = FUNCTIONS[sys.argv[1]](**json.load(sys.stdin))
        print(json.dumps(result))
        return 0
    except Exception as error:  # whatever it is, the caller gets it as the command's error
        print(f"{type(error).__name__}: {error}".replace("\n", " "))
        return 1


if __name__ == "__main__":
    sys.exit(main())
