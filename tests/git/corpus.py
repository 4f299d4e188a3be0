#!/usr/bin/env python3
"""Compares our git status and diff with git's, byte for byte, on generated repositories.

    corpus.py TOOL [--repos N] [--seed S] [--keep DIR] [-v]

TOOL is git_tool (tests/git/git_tool.c). Hand-made repositories cover what is known to be hard (renames, modes,
binary, submodules, conflicts, unborn, detached, worktrees, line ends, odd names); N random ones the rest. Prints
each difference, then the count; exits 1 when less than 99 % are equal.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

ENV = dict(os.environ, GIT_AUTHOR_NAME="a", GIT_AUTHOR_EMAIL="a@b", GIT_COMMITTER_NAME="a", GIT_COMMITTER_EMAIL="a@b",
           GIT_AUTHOR_DATE="2024-01-01T00:00:00Z", GIT_COMMITTER_DATE="2024-01-01T00:00:00Z", LC_ALL="C",
           GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL="/dev/null", HOME="/nonexistent", GIT_OPTIONAL_LOCKS="0")


def git(repo, *args, check=True, stdin=None):
    p = subprocess.run(["git", "-c", "protocol.file.allow=always", *args], cwd=repo, env=ENV, input=stdin,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if check and p.returncode:
        raise RuntimeError(f"git {args}: {p.stderr.decode()}")
    return p.stdout


def put(repo, name, data, mode=None):
    path = os.path.join(os.fsencode(repo), os.fsencode(name))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.islink(path):
        os.unlink(path)
    with open(path, "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())
    if mode:
        os.chmod(path, mode)


def link(repo, name, target):
    path = os.path.join(os.fsencode(repo), os.fsencode(name))
    if os.path.lexists(path):
        os.unlink(path)
    os.symlink(target, path)


def init(repo):
    os.makedirs(repo)
    git(repo, "init", "-q", "-b", "main")


def commit(repo):
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "--allow-empty", "-m", "x")


def lines(*numbers):
    return "".join(f"line number {n}\n" for n in numbers)


C_CODE = "#include <stdio.h>\n\n" + "".join(
    f"int function_{i}(int a, int b)\n{{\n    int c = a + {i};\n    if (c > b)\n        return c;\n    return b * {i};\n}}\n\n"
    for i in range(12))


def merge_pair(repo, base, ours, theirs, name="f"):
    init(repo)
    put(repo, name, base)
    put(repo, "other", "x\n")
    commit(repo)
    git(repo, "checkout", "-qb", "side")
    if theirs is None:
        os.unlink(os.path.join(repo, name))
    else:
        put(repo, name, theirs)
    commit(repo)
    git(repo, "checkout", "-q", "main")
    if ours is None:
        os.unlink(os.path.join(repo, name))
    else:
        put(repo, name, ours)
    commit(repo)
    git(repo, "merge", "-q", "side", check=False)


# --- hand-made repositories: name -> function(repo) -------------------------------------------------

def case_unborn(r):
    init(r)


def case_unborn_staged(r):
    init(r)
    put(r, "a", "x\n")
    put(r, "empty", "")
    put(r, "u", "u\n")
    git(r, "add", "a", "empty")
    put(r, "a", "x\ny\n")


def case_modes(r):
    init(r)
    put(r, "a", "x\n")
    put(r, "b", "x\n", 0o755)
    put(r, "c", "c\n")
    commit(r)
    os.chmod(f"{r}/a", 0o755)
    os.chmod(f"{r}/b", 0o644)
    put(r, "c", "c\nd\n", 0o755)


def case_types(r):
    init(r)
    put(r, "file", "content\n")
    link(r, "link", "file")
    put(r, "d/x", "x\n")
    put(r, "y", "y\n")
    commit(r)
    link(r, "file", "y")
    os.unlink(f"{r}/link")
    put(r, "link", "now a file\n")
    shutil.rmtree(f"{r}/d")
    put(r, "d", "now a file\n")
    os.unlink(f"{r}/y")
    put(r, "y/z", "now a directory\n")


def case_types_staged(r):
    case_types(r)
    git(r, "add", "-A")


def case_links(r):
    init(r)
    link(r, "l", "a")
    link(r, "gone", "nowhere/at all")
    commit(r)
    link(r, "l", "b/c")
    os.unlink(f"{r}/gone")
    link(r, "new", "/etc/passwd")
    git(r, "add", "new")


def case_binary(r):
    init(r)
    put(r, "bin", b"a\0b" * 100)
    put(r, "gone", b"\x89PNG\r\n\0\0")
    put(r, "tobin", "text\n")
    commit(r)
    put(r, "bin", b"a\0c" * 100)
    os.unlink(f"{r}/gone")
    put(r, "tobin", b"te\0xt\n")
    put(r, "new", b"\0\1\2")
    git(r, "add", "new")


def case_encodings(r):
    init(r)
    put(r, "latin", "caf\xe9\nx\n".encode("latin-1"))
    put(r, "utf16", "hello\nworld\n".encode("utf-16"))
    put(r, "utf8", "na\u00efve\n\u6f22\u5b57\n\U0001f600\n")
    commit(r)
    put(r, "latin", "caf\xe8\nx\n\xff\n".encode("latin-1"))
    put(r, "utf16", "hello\nthere\n".encode("utf-16"))
    put(r, "utf8", "naive\n\u6f22\n\U0001f600\n")


def case_newlines(r):
    init(r)
    for name, text in {"none": "a\nb", "had": "a\nb\n", "empty": "", "full": "x\n", "only": "\n\n\n", "one": "a"}.items():
        put(r, name, text)
    commit(r)
    for name, text in {"none": "a\nb\n", "had": "a\nb", "empty": "now\n", "full": "", "only": "\n\n", "one": "b"}.items():
        put(r, name, text)


def case_crlf(r):
    init(r)
    put(r, "a", "one\r\ntwo\r\nthree\r\n")
    put(r, "mixed", "one\r\ntwo\nthree\r\n")
    commit(r)
    put(r, "a", "one\r\nTWO\r\nthree\r\n")
    put(r, "mixed", "one\ntwo\r\nthree\r\n")


def case_autocrlf(r):
    init(r)
    put(r, ".gitattributes", "*.txt text\n*.crlf text eol=crlf\n*.bin -text\n")
    put(r, "a.txt", "one\ntwo\n")
    put(r, "b.crlf", "one\r\ntwo\r\n")
    put(r, "c.bin", "one\r\n")
    commit(r)
    put(r, "a.txt", "one\r\ntwo\r\nthree\r\n")
    put(r, "b.crlf", "one\r\nTWO\r\n")
    put(r, "c.bin", "one\n")


def case_attributes(r):
    init(r)
    put(r, ".gitattributes", "*.py diff=python\n*.c diff=cpp\n*.dat -diff\n*.lock binary\n*.md diff=markdown\n*.force diff\n")
    put(r, "a.py", "class A:\n" + "".join(f"    def m{i}(self):\n        x = {i}\n        y = 2\n        z = 3\n        return x\n\n" for i in range(6)))
    put(r, "a.c", C_CODE)
    put(r, "a.dat", "text\n")
    put(r, "a.lock", "text\n")
    put(r, "a.force", b"a\0b\n")
    commit(r)
    put(r, "a.py", open(f"{r}/a.py").read().replace("return x\n\n    def m4", "return y\n\n    def m4"))
    put(r, "a.c", C_CODE.replace("b * 7", "b * 77"))
    put(r, "a.dat", "text2\n")
    put(r, "a.lock", "text2\n")
    put(r, "a.force", b"a\0c\n")


def case_functions(r):
    init(r)
    put(r, "f.c", C_CODE)
    commit(r)
    put(r, "f.c", C_CODE.replace("return b * 3;", "return b * 33;\n    /* changed */").replace("a + 9", "a + 90"))


def case_indent(r):
    init(r)
    base = "def a():\n    one\n\n\ndef b():\n    two\n\n\ndef c():\n    three\n"
    put(r, "i.py", base)
    commit(r)
    put(r, "i.py", base.replace("def c()", "def bb():\n    two\n\n\ndef c()"))


def case_names(r):
    init(r)
    names = ["\u00fc \u00f1.txt", 'a"b', "tab\there", "new\nline", " lead", "trail ", "x -> y", "back\\slash", "bell\a",
             b"caf\xe9", "-rf", "--cached", "a..b", "d d/e e", "*", ":(top)x", "\x7fdel", "#hash", "!bang"]
    for n in names:
        put(r, n, "one\n")
    commit(r)
    for n in names:
        put(r, n, "two\n")
    put(r, "untracked \u00e9", "x\n")


def case_names_staged(r):
    case_names(r)
    git(r, "add", "-A")


def case_quotepath(r):
    case_names(r)
    git(r, "config", "core.quotepath", "false")


def case_renames(r):
    init(r)
    put(r, "old name", lines(*range(30)))
    put(r, "p -> q", lines(*range(100, 130)))
    put(r, "dir/a", lines(*range(200, 240)))
    put(r, "tiny", "x\n")
    put(r, "empty", "")
    put(r, "half", lines(*range(300, 340)))
    put(r, "bin", bytes(range(256)) * 8)
    put(r, "x", lines(*range(500, 520)), 0o755)
    commit(r)
    git(r, "mv", "old name", "new \u00e9")
    git(r, "mv", "p -> q", "r")
    os.makedirs(f"{r}/other")
    git(r, "mv", "dir/a", "other/a")
    put(r, "other/a", lines(*range(200, 235), 999, 998))
    git(r, "mv", "tiny", "tiny2")
    git(r, "mv", "empty", "empty2")
    git(r, "mv", "half", "half2")
    put(r, "half2", lines(*range(300, 322), *range(800, 818)))
    git(r, "mv", "bin", "bin2")
    put(r, "bin2", bytes(range(256)) * 7 + b"changed" * 30)
    git(r, "mv", "x", "y")
    os.chmod(f"{r}/y", 0o644)
    git(r, "add", "-A")
    put(r, "r", lines(*range(100, 129)))


def case_copies(r):
    init(r)
    put(r, "a", lines(*range(50)))
    commit(r)
    put(r, "b", lines(*range(50)))
    put(r, "c", lines(*range(49)))
    git(r, "add", "-A")


def case_swap(r):
    init(r)
    put(r, "a", lines(*range(50)))
    put(r, "b", lines(*range(100, 150)))
    commit(r)
    put(r, "a", lines(*range(100, 150)))
    put(r, "b", lines(*range(50)))
    git(r, "add", "-A")


def case_intent(r):
    init(r)
    put(r, "a", "x\n")
    commit(r)
    put(r, "new", "y\n")
    put(r, "new empty", "")
    git(r, "add", "-N", "new", "new empty")


def case_detached(r):
    init(r)
    put(r, "a", "x\n")
    commit(r)
    git(r, "checkout", "-q", "--detach")
    put(r, "a", "y\n")


def case_ignored(r):
    init(r)
    put(r, ".gitignore", "*.log\nbuild/\n!keep.log\n/top\n")
    put(r, "a", "x\n")
    put(r, "tracked.log", "x\n")
    git(r, "add", "-f", "tracked.log")
    commit(r)
    for n in ("b.log", "keep.log", "build/x", "top", "sub/top", "sub/c.log", "only/d.log"):
        put(r, n, "x\n")
    put(r, "tracked.log", "y\n")
    os.makedirs(f"{r}/void/void")
    put(r, ".git/info/exclude", "excluded\n")
    put(r, "excluded", "x\n")


def case_untracked_tree(r):
    init(r)
    put(r, "k/a", "x\n")
    commit(r)
    put(r, "k/b", "x\n")
    put(r, "n/m/o", "x\n")
    init(f"{r}/nested")
    put(r, "nested/f", "x\n")


def case_flags(r):
    init(r)
    for n in "abc":
        put(r, n, "x\n")
    commit(r)
    git(r, "update-index", "--assume-unchanged", "a")
    git(r, "update-index", "--skip-worktree", "b")
    for n in "abc":
        put(r, n, "y\n")


def case_filemode_off(r):
    init(r)
    put(r, "a", "x\n")
    commit(r)
    git(r, "config", "core.filemode", "false")
    os.chmod(f"{r}/a", 0o755)


def case_touched(r):
    init(r)
    put(r, "a", "x\n")
    commit(r)
    os.utime(f"{r}/a", (1, 1))


def case_submodule(r):
    sub = r + "-sub"
    init(sub)
    put(sub, "s", "1\n")
    commit(sub)
    init(r)
    put(r, "a", "x\n")
    commit(r)
    git(r, "submodule", "-q", "add", sub, "mod")
    commit(r)
    put(f"{r}/mod", "s", "2\n")
    commit(f"{r}/mod")


def case_submodule_dirty(r):
    case_submodule(r)
    git(r, "add", "mod")
    put(f"{r}/mod", "s", "3\n")


def case_submodule_only_dirty(r):
    case_submodule(r)
    git(r, "add", "mod")
    git(r, "commit", "-q", "-m", "y")
    put(f"{r}/mod", "s", "3\n")


def case_submodule_untracked(r):
    case_submodule(r)
    git(r, "add", "mod")
    git(r, "commit", "-q", "-m", "y")
    put(f"{r}/mod", "u", "3\n")


def case_submodule_empty(r):
    case_submodule(r)
    git(r, "submodule", "-q", "deinit", "-f", "mod")


def case_submodule_removed(r):
    case_submodule(r)
    git(r, "rm", "-qf", "mod")


def case_large(r):
    init(r)
    for i in range(700):
        put(r, f"d{i // 70}/s-{i // 7}/f{i}", lines(i))
    for n in ("a", "a-b/x", "a.b/x", "a/x", "a0/x", "gone/x", "y", "ignored/t"):
        if n != "a":
            put(r, n, "x\n")
    put(r, ".gitignore", "ignored/\n*.o\n")
    git(r, "add", "-f", "ignored/t")
    commit(r)
    os.utime(f"{r}/d0/s-0/f0", (1, 1))
    put(r, "d1/s-10/f70", "changed\n")
    os.chmod(f"{r}/d1/s-10/f71", 0o755)
    link(r, "d1/s-10/f72", "x")
    os.unlink(f"{r}/d2/s-20/f140")
    shutil.rmtree(f"{r}/gone")
    shutil.rmtree(f"{r}/a0")
    put(r, "a0", "now a file\n")
    os.unlink(f"{r}/y")
    put(r, "y/z", "now a directory\n")
    put(r, "a/new", "x\n")
    put(r, "a-b/x.o", "x\n")
    put(r, "ignored/u", "x\n")
    put(r, "ignored/t", "y\n")
    put(r, "fresh/deep/er", "x\n")
    put(r, "onlyignored/x.o", "x\n")
    put(r, "d3/s-30/untracked", "x\n")
    os.makedirs(f"{r}/void")
    link(r, "dlink", "d3")
    put(r, "d4/s-40/f280", lines(280, 1))
    git(r, "add", "d4")


def case_large_clean(r):
    init(r)
    for i in range(700):
        put(r, f"d{i // 70}/f{i}", lines(i))
    commit(r)
    time.sleep(0.02)
    git(r, "status")


def case_submodule_new(r):
    sub = r + "-sub"
    init(sub)
    put(sub, "s", "1\n")
    commit(sub)
    init(r)
    put(r, "a", "x\n")
    commit(r)
    git(r, "submodule", "-q", "add", sub, "mod")


def case_submodule_gone(r):
    case_submodule(r)
    shutil.rmtree(f"{r}/mod")


def case_worktree(r):
    main = r + "-main"
    init(main)
    put(main, "a", "x\n")
    commit(main)
    git(main, "worktree", "add", "-q", "-b", "wt", r)
    put(r, "a", "y\n")
    put(r, "b", "y\n")


def case_separate_git_dir(r):
    os.makedirs(r)
    git(r, "init", "-q", "-b", "main", "--separate-git-dir", r + "-git")
    put(r, "a", "x\n")
    commit(r)
    put(r, "a", "y\n")


def case_packed(r):
    init(r)
    for i in range(40):
        put(r, f"d{i % 4}/f{i}", lines(*range(i, i + 30)))
    commit(r)
    git(r, "gc", "-q")
    for i in range(0, 40, 3):
        put(r, f"d{i % 4}/f{i}", lines(*range(i + 1, i + 31)))


def case_index_v4(r):
    case_packed(r)
    git(r, "update-index", "--index-version", "4")


def case_abbrev(r):
    case_packed(r)
    git(r, "config", "core.abbrev", "12")


def case_upstream(r):
    origin = r + "-origin"
    init(origin)
    put(origin, "a", "x\n")
    commit(origin)
    git(os.path.dirname(r), "clone", "-q", origin, r)
    put(r, "b", "y\n")
    commit(r)
    put(origin, "c", "z\n")
    commit(origin)
    git(r, "fetch", "-q")


def case_conflict(r):
    merge_pair(r, lines(*range(20)), lines(*range(8), 100, *range(9, 20)), lines(*range(8), 200, *range(9, 20)))


def case_conflict_resolved(r):
    case_conflict(r)
    put(r, "f", lines(*range(8), 300, *range(9, 20)))


def case_conflict_ours(r):
    case_conflict(r)
    put(r, "f", lines(*range(8), 100, *range(9, 20)))


def case_conflict_both(r):
    merge_pair(r, lines(*range(60)), lines(*range(5), 100, 101, *range(8, 30), *range(33, 60)),
               lines(*range(5), 200, *range(7, 30), 300, *range(34, 50), *range(52, 60)))


def case_conflict_code(r):
    merge_pair(r, C_CODE, C_CODE.replace("b * 7", "b * 70").replace("a + 2;", "a + 20;"),
               C_CODE.replace("b * 7", "b * 71").replace("a + 10;", "a + 100;"))


def case_conflict_dropped(r):
    case_conflict_both(r)
    put(r, "f", lines(*range(3, 50)))


def case_conflict_emptied(r):
    case_conflict(r)
    put(r, "f", "")


def case_conflict_removed(r):
    case_conflict(r)
    os.unlink(f"{r}/f")


def case_conflict_no_newline(r):
    merge_pair(r, "a\nb", "a\nc", "a\nd")


def case_conflict_mode(r):
    case_conflict(r)
    os.chmod(f"{r}/f", 0o755)


def case_conflict_binary(r):
    merge_pair(r, b"a\0a", b"a\0b", b"a\0c")


def case_conflict_them_deleted(r):
    merge_pair(r, lines(*range(9)), lines(*range(9), 1), None)


def case_conflict_us_deleted(r):
    merge_pair(r, lines(*range(9)), None, lines(*range(9), 1))


def case_conflict_added(r):
    init(r)
    put(r, "z", "x\n")
    commit(r)
    git(r, "checkout", "-qb", "side")
    put(r, "new file", lines(1, 2, 3))
    commit(r)
    git(r, "checkout", "-q", "main")
    put(r, "new file", lines(1, 5, 3))
    commit(r)
    git(r, "merge", "-q", "side", check=False)
    put(r, "z", "y\n")
    put(r, "a", "y\n")
    git(r, "add", "a")


def case_conflict_rename(r):
    init(r)
    put(r, "f", lines(*range(30)))
    commit(r)
    git(r, "checkout", "-qb", "side")
    git(r, "mv", "f", "g")
    commit(r)
    git(r, "checkout", "-q", "main")
    git(r, "mv", "f", "h")
    commit(r)
    git(r, "merge", "-q", "side", check=False)


def case_big(r):
    init(r)
    put(r, "big", lines(*range(20000)))
    commit(r)
    put(r, "big", lines(*[n for n in range(20000) if n % 7], *range(5)))


def case_long_lines(r):
    init(r)
    put(r, "l", "x" * 5000 + "\n" + "function " + "y" * 200 + "\n" + lines(*range(20)))
    commit(r)
    put(r, "l", "x" * 5000 + "\n" + "function " + "y" * 200 + "\n" + lines(*range(15), 77, *range(16, 20)))


def case_many_hunks(r):
    init(r)
    put(r, "h", lines(*range(400)))
    commit(r)
    put(r, "h", lines(*[n if n % 9 else n + 1000 for n in range(400)]))


def case_no_prefix_config(r):
    init(r)
    put(r, "a", "x\n")
    commit(r)
    put(r, "a", "y\n")
    git(r, "config", "color.ui", "always")
    git(r, "config", "status.short", "true")
    git(r, "config", "core.pager", "touch pwned")


# --- random repositories ----------------------------------------------------------------------------

WORDS = ["alpha", "beta", "gamma", "delta", "return x;", "}", "{", "", "    if (a)", "int main(void)", "class Foo:",
         "\tdef bar(self):", "/* comment */", "0", "x = 1", "# head", "$dollar", "_under"]


def random_text(rng, n):
    return [rng.choice(WORDS) + (f" {rng.randrange(40)}" if rng.random() < 0.5 else "") for _ in range(n)]


def mutate(rng, text):
    text = list(text)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(text) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            text[at:at] = random_text(rng, rng.randrange(1, 6))
        elif kind == 1:
            del text[at:at + rng.randrange(1, 6)]
        elif kind == 2 and text:
            text[min(at, len(text) - 1)] = rng.choice(WORDS)
        else:
            cut = text[at:at + 4]
            del text[at:at + 4]
            to = rng.randrange(len(text) + 1)
            text[to:to] = cut
    return text


def write_text(rng, repo, name, text):
    put(repo, name, "\n".join(text) + ("\n" if text and rng.random() < 0.9 else ""),
        0o755 if rng.random() < 0.1 else 0o644)


def random_repo(r, seed):
    rng = random.Random(seed)
    init(r)
    files = {}
    for i in range(rng.randrange(1, 14)):
        name = rng.choice(["", "dir/", "dir/sub/", "o ther/"]) + rng.choice(["f", "x y", "\u00e9", "q\"", "Z"]) + str(i)
        files[name] = random_text(rng, rng.randrange(0, 80))
        write_text(rng, r, name, files[name])
    commit(r)
    if rng.random() < 0.3:
        git(r, "gc", "-q")
    if rng.random() < 0.35:
        git(r, "checkout", "-qb", "side")
        for name in files:
            if rng.random() < 0.6:
                write_text(rng, r, name, mutate(rng, files[name]))
        commit(r)
        git(r, "checkout", "-q", "main")
        for name in files:
            if rng.random() < 0.6:
                write_text(rng, r, name, mutate(rng, files[name]))
        commit(r)
        git(r, "merge", "-q", "side", check=False)
        if rng.random() < 0.5:
            for name in files:
                if rng.random() < 0.3:
                    write_text(rng, r, name, mutate(rng, files[name]))
        return
    for stage in (True, False):
        for name in list(files):
            what = rng.random()
            path = os.path.join(r, name)
            if not os.path.exists(path):
                continue
            if what < 0.4:
                files[name] = mutate(rng, files[name])
                write_text(rng, r, name, files[name])
            elif what < 0.5:
                os.unlink(path)
            elif what < 0.65 and stage:
                new = f"moved {rng.randrange(99)}/" + os.path.basename(name)
                os.makedirs(os.path.dirname(os.path.join(r, new)), exist_ok=True)
                os.rename(path, os.path.join(r, new))
                files[new] = mutate(rng, files.pop(name)) if rng.random() < 0.6 else files.pop(name)
                write_text(rng, r, new, files[new])
        for i in range(rng.randrange(3)):
            write_text(rng, r, f"new{i}{stage}", random_text(rng, rng.randrange(30)))
        if stage:
            git(r, "add", "-A")


# --- comparing --------------------------------------------------------------------------------------

def expected_status(repo):
    fields = git(repo, "status", "--porcelain", "-z").split(b"\0")[:-1]
    out, i = [], 0
    while i < len(fields):
        letters, name = fields[i][:2].decode(), fields[i][3:]
        old = None
        if letters[0] in "RC" or letters[1] in "RC":
            i += 1
            old = fields[i]
        i += 1
        out.append((letters, name.decode("utf-8", "replace"), old.decode("utf-8", "replace") if old else None))
    return out


def ours(tool, what, repo):
    p = subprocess.run([tool, what, repo], env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if p.returncode:
        return {"failed": p.stderr.decode()}
    return json.loads(p.stdout)


def summary(repo, *staged):
    text = git(repo, "diff", "--shortstat", *staged).decode()
    numbers = [0, 0, 0]
    for part in text.split(","):
        for i, word in enumerate(("changed", "insertion", "deletion")):
            if word in part:
                numbers[i] = int(part.split()[0])
    return dict(zip(("files_changed", "insertions", "deletions"), numbers))


def compare(tool, repo, name, report):
    index = os.path.join(git(repo, "rev-parse", "--absolute-git-dir").decode().strip(), "index")
    before = open(index, "rb").read() if os.path.exists(index) else b""
    answers = {what: ours(tool, what, repo) for what in ("diff", "staged", "status")}
    after = open(index, "rb").read() if os.path.exists(index) else b""
    report(f"{name} index untouched", after == before, True)
    for what, args in (("diff", ()), ("staged", ("--cached",))):
        got = answers[what]
        want = git(repo, "diff", *args, "--no-color").decode("utf-8", "replace")
        report(f"{name} {what}", got.get("diff", got), want)
        report(f"{name} {what} stats", got.get("stats", got), summary(repo, *args))
    got = answers["status"]
    report(f"{name} status", [(f["index"] + f["worktree"], f["path"], f.get("old_path")) for f in got.get("files", [])],
           expected_status(repo))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("tool")
    ap.add_argument("--repos", type=int, default=150)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--only")
    ap.add_argument("--keep")
    ap.add_argument("-v", action="store_true")
    args = ap.parse_args()
    top = args.keep or tempfile.mkdtemp(prefix="git-corpus-")
    counts = {"equal": 0, "different": 0}
    differing = []

    def report(name, got, want):
        if got == want:
            counts["equal"] += 1
            return
        counts["different"] += 1
        differing.append(name)
        if args.v:
            print(f"=== {name}\n--- ours\n{got}\n--- git\n{want}")

    tool = os.path.abspath(args.tool)
    makers = [(n[5:], f) for n, f in sorted(globals().items()) if n.startswith("case_")]
    makers += [(f"random{i}", lambda r, i=i: random_repo(r, args.seed * 100000 + i)) for i in range(args.repos)]
    for name, make in makers:
        if args.only and args.only != name:
            continue
        repo = os.path.join(top, name)
        make(repo)
        compare(tool, repo, name, report)
        if not args.keep:
            for path in os.listdir(top):
                shutil.rmtree(os.path.join(top, path))
    if not args.keep:
        shutil.rmtree(top)
    for name in differing:
        print("differs:", name)
    total = sum(counts.values())
    print(f"{counts['equal']} of {total} equal ({100 * counts['equal'] / max(total, 1):.2f} %)")
    return 0 if counts["equal"] >= 0.99 * total else 1


if __name__ == "__main__":
    sys.exit(main())
