#!/usr/bin/env python3
"""Checks the structure of the source tree, one line for everything that is wrong.

    scripts/check_includes.py [ROOT]

* An #include never goes upward between floors: apps > zero > io > core > kernels > core/base.
* There is no circle of #includes, between files or between folders (core/base is a folder of its own).
* An #include in quotes names a file of the project by its path from the root; files of the project are never included
  in angle brackets.
* Every header has #pragma once.
* No source, test or script is longer than 800 lines.
* No two product files share a passage of 12 lines of code.

Exits with 1 if anything is wrong.
"""

import collections
import os
import re
import sys

FLOORS = {"apps": 5, "zero": 4, "io": 3, "core": 2, "kernels": 1, "core/base": 0}
PRODUCT = ("apps", "core", "io", "kernels", "zero")
CHECKED = PRODUCT + ("scripts", "test")
CPP = (".cpp", ".h", ".cu", ".cuh")
SOURCES = CPP + (".py", ".sh")
MOST_LINES = 800
PASSAGE = 12  # lines of code, blank lines, comments, includes and lone brackets not counted

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)


def read_sources(root):
    """Path from the root -> text, for everything that is checked."""
    sources = {}
    for top in CHECKED:
        for folder, folders, names in os.walk(os.path.join(root, top)):
            folders[:] = [name for name in folders if name not in ("__pycache__", "data", "goldens")]
            for name in names:
                if name.endswith(SOURCES):
                    path = os.path.join(folder, name)
                    with open(path, encoding="utf-8") as file:
                        sources[os.path.relpath(path, root).replace(os.sep, "/")] = file.read()
    return sources


def floor_of(path):
    """The floor of a file, or None where floors do not apply (tests)."""
    if path.startswith("core/base/"):
        return FLOORS["core/base"]
    return FLOORS.get(path.split("/")[0])


def folder_of(path):
    """Folders below a floor belong to it, but for core/base."""
    return "core/base" if path.startswith("core/base/") else path.split("/")[0]


def find_circle(graph):
    """The nodes of one circle of a graph (node -> set of nodes), or None. Depth first, without recursion."""
    done = set()
    for start in sorted(graph):
        path, on_path, stack = [], set(), [(start, 0)]
        while stack:
            node, depth = stack.pop()
            while len(path) > depth:
                left = path.pop()
                on_path.discard(left)
                done.add(left)
            if node in on_path:
                return path[path.index(node) :] + [node]
            if node in done:
                continue
            path.append(node)
            on_path.add(node)
            stack.extend((next_node, depth + 1) for next_node in sorted(graph.get(node, ())))
        done.update(path)
    return None


def check_includes(sources):
    problems = []
    files, folders = collections.defaultdict(set), collections.defaultdict(set)
    for path, text in sources.items():
        if not path.endswith(CPP):
            continue
        for match in INCLUDE.finditer(text):
            quoted, angled = match.groups()
            where = f"{path}:{text.count(chr(10), 0, match.start(1 if quoted else 2)) + 1}"
            if angled:
                if angled in sources:
                    problems.append(f"{where}: <{angled}> is a file of the project: write it in quotes")
                continue
            if quoted not in sources:
                problems.append(f'{where}: "{quoted}" is no file of the project (paths are from the root)')
                continue
            files[path].add(quoted)
            if folder_of(path) != folder_of(quoted):
                folders[folder_of(path)].add(folder_of(quoted))
            here, there = floor_of(path), floor_of(quoted)
            if here is not None and (there is None or there > here):
                problems.append(f'{where}: includes "{quoted}", which is on a floor above')
    for what, graph in (("files", files), ("folders", folders)):
        circle = find_circle(graph)
        if circle:
            problems.append(f"a circle of includes between {what}: {' -> '.join(circle)}")
    return problems


def check_files(sources):
    problems = []
    for path, text in sources.items():
        lines = text.count("\n")
        if lines > MOST_LINES:
            problems.append(f"{path}: {lines} lines, {MOST_LINES} at most: split it by ideas")
        if path.endswith((".h", ".cuh")) and not re.search(r"^#pragma once$", text, re.MULTILINE):
            problems.append(f"{path}: has no #pragma once")
    return problems


def code_lines(text):
    """(number, line) of the lines that carry logic, without spaces."""
    for number, line in enumerate(text.splitlines(), 1):
        line = re.sub(r"\s+", "", re.sub(r"//.*", "", line))
        if len(line) > 3 and not line.startswith("#"):
            yield number, line


def check_passages(sources):
    """Passages that are written twice in the product."""
    first_seen, problems, reported = {}, [], set()
    for path in sorted(sources):
        if not path.startswith(tuple(name + "/" for name in PRODUCT)):
            continue
        lines = list(code_lines(sources[path]))
        for at in range(len(lines) - PASSAGE + 1):
            passage = tuple(line for _, line in lines[at : at + PASSAGE])
            place = (path, lines[at][0])
            other = first_seen.setdefault(passage, place)
            if other != place and (other[0], path) not in reported:
                reported.add((other[0], path))
                problems.append(f"{path}:{place[1]}: the same {PASSAGE} lines as {other[0]}:{other[1]}")
    return problems


def check(root):
    sources = read_sources(root)
    return check_includes(sources) + check_files(sources) + check_passages(sources)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    problems = check(root)
    print("\n".join(problems) if problems else "The structure of the source tree is as it should be.")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
