#!/usr/bin/env python3
"""Breaks the CUDA kernels on purpose, one change at a time, and shows that their tests notice.

    mutants.py --build BUILD_DIR [--only NAME ...] [--jobs N] [--work DIR]

The changes ("mutants") are listed in mutants_*.toml beside this file. For each one kernels/cuda is copied, the change
is made in the copy, the translation units that see it are compiled as BUILD_DIR compiles its checked kernels (but with
-O1), and the test program is linked anew and run until its first failure. A test that fails, crashes or does not end
has noticed the change. BUILD_DIR is one of Ninja, with the programs cuda_*_test built.

First the unchanged kernels go the same way and must pass: what the tests notice later is the change, nothing else.
With --only (parts of names) that is left out. Objects are kept by ccache where there is one, so that the next run
compiles only what has changed since.

The last line is `N of M noticed`. Exits with 1 if that is too few or they are too few altogether, and with 2 where the
list itself is wrong: a text to replace that does not occur exactly once, or a change that does not compile.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNELS = pathlib.Path("kernels", "cuda")
LISTS = sorted(pathlib.Path(__file__).parent.glob("mutants_*.toml"))
LEAST_MUTANTS = 60
LEAST_NOTICED = 0.95
TEST_SECONDS = 300
COMPILE_SECONDS = 600
MOST_CHARACTERS = 240  # of a report

INCLUDE = re.compile(r'^#include "kernels/cuda/([^"]+)"', re.MULTILINE)


class ListError(Exception):
    """The list of mutants does not fit the kernels."""


@dataclasses.dataclass
class Mutant:
    name: str
    program: str  # the test that is to notice
    file: str  # in kernels/cuda
    old: str
    new: str
    units: list = dataclasses.field(default_factory=list)  # without .cu; empty: all that include the file
    cases: str = ""  # of the test, as Catch is told; empty: all


def read_lists():
    """A list is a table of test programs, and each of these a table of mutants."""
    mutants = []
    for path in LISTS:
        with open(path, "rb") as file:
            for program, entries in tomllib.load(file).items():
                mutants += [Mutant(name=name, program=program, **entry) for name, entry in entries.items()]
    names = [mutant.name for mutant in mutants]
    if len(set(names)) != len(names):
        raise ListError(f"names that occur twice: {sorted({name for name in names if names.count(name) > 1})}")
    return mutants


class Sources:
    """The kernels as they are, and which translation units include what."""

    def __init__(self):
        self.texts = {path.name: path.read_text() for path in (ROOT / KERNELS).iterdir() if path.suffix in (".cu", ".h")}
        self.units = sorted(name for name in self.texts if name.endswith(".cu"))

    def included(self, name):
        """All files of the kernels that a file consists of."""
        found, left = set(), [name]
        while left:
            file = left.pop()
            if file in self.texts and file not in found:
                found.add(file)
                left += INCLUDE.findall(self.texts[file])
        return found

    def units_of(self, mutant):
        seeing = [unit for unit in self.units if mutant.file in self.included(unit)]
        wanted = [f"{unit}.cu" for unit in mutant.units] or seeing
        if not wanted or not set(wanted) <= set(seeing):
            raise ListError(f"{mutant.name}: {mutant.file} is not part of {mutant.units or 'any unit'}")
        return wanted

    def check(self, mutant):
        count = self.texts.get(mutant.file, "").count(mutant.old)
        if count != 1:
            raise ListError(f"{mutant.name}: the text to replace occurs {count} times in {mutant.file}:\n{mutant.old}")
        self.units_of(mutant)

    def write(self, root, mutant=None):
        """The kernels below an include root, changed by the mutant."""
        (root / KERNELS).mkdir(parents=True)
        for name, text in self.texts.items():
            changed = mutant is not None and name == mutant.file
            (root / KERNELS / name).write_text(text.replace(mutant.old, mutant.new) if changed else text)


class Build:
    """What a build directory knows about compiling the checked kernels and linking their tests."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory).resolve()
        with open(self.directory / "compile_commands.json", encoding="utf-8") as file:
            commands = json.load(file)
        self.compilations = {
            os.path.basename(entry["file"]): shlex.split(entry["command"])
            for entry in commands
            if "tessera_checked_kernels.dir" in entry["command"]
        }
        self.launcher = [path for path in [shutil.which("ccache")] if path]

    def compile(self, unit, root):
        """The object of a unit whose sources lie below `root`, or None and what the compiler says."""
        target = root / f"{unit}.o"
        words = list(self.compilations[unit])
        words[words.index("-o") + 1] = target
        words[words.index("-c") + 1] = KERNELS / unit
        words[1:1] = ["-I."]  # before the root of the project
        command = [word for word in words if word not in ("-O3", "-O2", "-Werror")]
        done = run(self.launcher + command + ["-O1", "-w"], root, COMPILE_SECONDS)
        return (target, "") if done.returncode == 0 else (None, done.stderr)

    def link(self, program, objects, root):
        """The program with these objects in place of what the libraries have of them."""
        command = run(["ninja", "-C", self.directory, "-t", "commands", "-s", f"test/{program}"], self.directory, 60).stdout
        target = root / program
        old = f" -o test/{program} "
        if old not in command:
            raise ListError(f"{self.directory} has no program {program}")
        command = command.replace(old, f" {shlex.join(map(str, objects))} -o {shlex.quote(str(target))} ")
        done = run(["sh", "-c", command], self.directory, COMPILE_SECONDS)
        if done.returncode != 0:
            raise ListError(f"linking {program}: {done.stdout}{done.stderr}")
        return target


def run(command, directory, seconds):
    return subprocess.run(
        [str(word) for word in command], cwd=directory, timeout=seconds, capture_output=True, text=True, errors="replace"
    )


def first_report(output):
    """What Catch says of the first failure, without what was captured, in one line; or what the emulator says."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    begin = next((i + 1 for i, line in enumerate(lines) if line.endswith("FAILED:")), None)
    if begin is None:
        return " ".join(lines[-2:]) or "no output"
    end = next((i for i in range(begin, len(lines)) if lines[i].startswith("=====")), len(lines))
    said = [line for line in lines[begin:end] if " := " not in line]
    emulator = next((i for i, line in enumerate(said) if line.startswith("kernel tessera::")), 0)
    return " ".join(said[emulator:])[:MOST_CHARACTERS]


def noticed_as(program, cases):
    """How a test program notices what is wrong with it; None: not at all."""
    arguments = [program, "--abort"] + ([cases] if cases else [])
    try:
        done = run(arguments, ROOT / "test", TEST_SECONDS)
    except subprocess.TimeoutExpired:
        return f"does not end within {TEST_SECONDS} s"
    if done.returncode < 0:
        return f"ended by signal {-done.returncode}: {first_report(done.stdout)}"
    return first_report(done.stdout) if done.returncode else None


def try_kernels(sources, build, work, program, units, mutant=None):
    """How the test notices a mutant, or how the unchanged kernels fail; None: it passes."""
    with tempfile.TemporaryDirectory(dir=work) as directory:
        root = pathlib.Path(directory)
        sources.write(root, mutant)
        objects = []
        for unit in units:
            target, errors = build.compile(unit, root)
            if target is None:
                raise ListError(f"{mutant.name if mutant else 'unchanged'} does not compile:\n{errors}")
            objects.append(target)
        return noticed_as(build.link(program, objects, root), mutant.cases if mutant else "")


def check_unchanged(sources, build, work, mutants):
    for program in sorted({mutant.program for mutant in mutants}):
        units = {unit for mutant in mutants if mutant.program == program for unit in sources.units_of(mutant)}
        report = try_kernels(sources, build, work, program, sorted(units))
        if report is not None:
            raise ListError(f"{program} fails with unchanged kernels: {report}")
        print(f"{program} passes with unchanged kernels", flush=True)


def try_mutants(sources, build, work, mutants, jobs):
    """Prints a line for each; the number of those noticed."""
    noticed = 0

    def attempt(mutant):
        began = time.monotonic()
        report = try_kernels(sources, build, work, mutant.program, sources.units_of(mutant), mutant)
        return report, time.monotonic() - began

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for mutant, (report, seconds) in zip(mutants, pool.map(attempt, mutants)):
            noticed += report is not None
            said = f"noticed by {mutant.program}: {report}" if report is not None else "SURVIVED"
            print(f"{mutant.name} ({seconds:.0f} s): {said}", flush=True)
    return noticed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", required=True, help="build directory of Ninja with the programs cuda_*_test")
    parser.add_argument("--only", nargs="+", help="mutants whose names contain one of these")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--work", help="directory for copies, objects and programs (default: a temporary one)")
    arguments = parser.parse_args()
    try:
        sources, build, mutants = Sources(), Build(arguments.build), read_lists()
        for mutant in mutants:
            sources.check(mutant)
        if arguments.only:
            mutants = [mutant for mutant in mutants if any(part in mutant.name for part in arguments.only)]
            if not mutants:
                raise ListError(f"no mutant is called {' or '.join(arguments.only)}")
        if arguments.work:
            os.makedirs(arguments.work, exist_ok=True)
        if not arguments.only:
            check_unchanged(sources, build, arguments.work, mutants)
        noticed = try_mutants(sources, build, arguments.work, mutants, arguments.jobs)
    except ListError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{noticed} of {len(mutants)} noticed")
    enough = arguments.only or len(mutants) >= LEAST_MUTANTS
    return 0 if enough and noticed >= LEAST_NOTICED * len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
