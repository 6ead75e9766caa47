#!/usr/bin/env python3
"""Compares what ptxas says of each CUDA kernel with the budget of the kernels, a line for everything that is wrong.

    scripts/check_kernel_budget.py BUILD_DIR BUDGET [--update]

The build keeps the reports of ptxas beside its objects (scripts/keep_ptxas_report.sh). A kernel may not spill registers
nor have a stack, and may take as many registers and bytes of static shared memory as its line of BUDGET says for each
architecture. A kernel without a line, and a line without a kernel, are wrong. --update writes BUDGET anew.
"""

import argparse
import pathlib
import re
import subprocess
import sys

ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def read_reports(build):
    """(kernel, architecture) -> registers, bytes of static shared memory, bytes of stack and spills."""
    found = {}
    for path in sorted(pathlib.Path(build).rglob("*.cu.o.ptxas")):
        entry, stack = None, 0
        for line in path.read_text(encoding="utf-8").splitlines():
            if match := ENTRY.search(line):
                entry = match.groups()
            elif entry and (match := STACK.search(line)):
                stack = sum(map(int, match.groups()))
            elif entry and (match := USED.search(line)):
                shared = SHARED.search(line)
                found[entry] = (int(match[1]), int(shared[1]) if shared else 0, stack)
                entry, stack = None, 0
    return found


def shorten(names):
    """Mangled name -> the kernel's struct as a reader knows it."""
    filtered = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    short = {}
    for name, text in zip(names, filtered.stdout.splitlines()):
        kernel = re.fullmatch(r"void tessera::simt::run<(.*)>\(.*\)", text)[1]
        short[name] = re.sub(r"tessera::(cuda::)?|\(anonymous namespace\)::", "", kernel).replace(" ", "").replace(",", ", ")
    return short


def table_of(reports):
    """Kernel -> architecture -> registers, shared, stack."""
    names = shorten(sorted({name for name, _ in reports}))
    table = {}
    for (name, architecture), values in reports.items():
        table.setdefault(names[name], {})[architecture] = values
    return table


def read_budget(path):
    """Kernel -> architecture -> registers, shared. Lines of name | architecture registers shared | ..."""
    budget = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, *cells = (cell.strip() for cell in line.split("|"))
            budget[name] = {words[0]: (int(words[1]), int(words[2])) for words in map(str.split, cells)}
    return budget


def write_budget(path, table):
    lines = ["# Registers of a thread and bytes of static shared memory of a block that each CUDA kernel may take:",
             "# kernel | architecture registers shared | ... Written by scripts/check_kernel_budget.py --update."]
    for name in sorted(table):
        cells = [f"{architecture} {table[name][architecture][0]} {table[name][architecture][1]}"
                 for architecture in sorted(table[name])]
        lines.append(" | ".join([name, *cells]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def compare(table, budget):
    """What is wrong, a line each."""
    for name in sorted(table.keys() | budget.keys()):
        if name not in budget:
            yield f"{name}: no line of the budget"
        elif name not in table:
            yield f"{name}: no such kernel was compiled"
        for architecture, (registers, shared, stack) in sorted(table.get(name, {}).items()):
            where = f"{name} for {architecture}"
            if stack > 0:
                yield f"{where}: {stack} bytes of stack and spills"
            if name in budget and architecture not in budget[name]:
                yield f"{where}: no budget for this architecture"
            elif name in budget:
                if registers > budget[name][architecture][0]:
                    yield f"{where}: {registers} registers, the budget is {budget[name][architecture][0]}"
                if shared > budget[name][architecture][1]:
                    yield f"{where}: {shared} bytes of shared memory, the budget is {budget[name][architecture][1]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("budget", type=pathlib.Path)
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    table = table_of(read_reports(options.build))
    if not table:
        sys.exit(f"no report of ptxas below {options.build}")
    if options.update:
        write_budget(options.budget, table)
    wrong = list(compare(table, read_budget(options.budget)))
    print("\n".join(wrong) or f"{len(table)} kernels are within their budget")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
