#!/usr/bin/env python3
"""Prints the figures of the house: how much there is, and how much each room holds.

Of the library (mpu, parallelizers, checkpoint, oslo_cpp) and the command (tools). CONTRIBUTING.md says
what they were.
"""
import collections
import pathlib
import re
import statistics
import sys

import includes

CONTROL = re.compile(r"^\s*(?:\}\s*)?(?:if|for|while|switch|catch|else|do|try|namespace|extern)\b")
TEST = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\(", re.MULTILINE)


def quantile(values: list[int], share: float) -> int:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0


def function_lengths(text: str) -> list[int]:
    """Lines of each function's body and head, as clang-format lays them out."""
    lengths = []
    lines = text.split("\n")
    start = 0  # of the statement that the line belongs to
    for number, line in enumerate(lines):
        ends = line.rstrip()
        if ends.endswith("{"):
            head = " ".join(lines[start:number + 1])
            indent = len(lines[start]) - len(lines[start].lstrip())
            is_function = ("(" in head and not CONTROL.match(lines[start]) and
                           not re.search(r"\b(?:class|struct|enum|union)\b[^()]*\{$", head) and
                           "[" not in head.split("(")[0] and "=" not in head.split("(")[0] and
                           indent <= 2)
            if is_function:
                close = " " * indent + "}"
                for end in range(number + 1, len(lines)):
                    if lines[end].startswith(close):
                        lengths.append(end - start + 1)
                        break
        elif ends.endswith("}") and "(" in ends and "{" in ends and not CONTROL.match(ends):
            lengths.append(number - start + 1)
        if not ends or ends.endswith((";", "{", "}", ":")) or ends.lstrip().startswith(("//", "#")):
            start = number + 1
    return lengths


def reached(root: pathlib.Path, header: str) -> set[str]:
    """The headers of ours that a program includes with this one."""
    found, left = set(), [header]
    while left:
        name = left.pop()
        if name in found or not (root / name).exists():
            continue
        found.add(name)
        left += includes.INCLUDE.findall((root / name).read_text())
    return found


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    files = [path for floor in includes.ROOMS for path in sorted((root / floor).rglob("*"))
             if path.suffix in includes.SOURCES]
    texts = {path: path.read_text() for path in files}
    lines = [text.count("\n") for text in texts.values()]
    full = [line for text in texts.values() for line in text.split("\n") if line.strip()]
    comments = sum(line.lstrip().startswith("//") for line in full)
    functions = [length for text in texts.values() for length in function_lengths(text)]
    graph = includes.components(root)
    fan_out = collections.Counter({name: len(included) for name, included in graph.items()})
    held = collections.Counter(path.parent.relative_to(root).as_posix() for path in files)
    tests = [path for path in sorted((root / "tests").rglob("*")) if path.suffix in includes.SOURCES]
    cases = sum(len(TEST.findall(path.read_text())) for path in tests)
    programs = {path.relative_to(root / "tests").parts[0].removesuffix(".cpp") for path in tests
                if path.relative_to(root / "tests").parts[0].removesuffix(".cpp").endswith("_test")}
    public = reached(root, "oslo_cpp/oslo.h")
    headers = [path for path in files if path.suffix == ".h" and path.parts[0] != "tools"]
    widest = ", ".join(f"{name.split('/')[-1]} {count}" for name, count in fan_out.most_common(3))
    fullest = ", ".join(f"{name} {count}" for name, count in held.most_common(3))
    for what, figure in [
            ("source files of the library and the command", f"{len(files)}"),
            ("their lines", f"{sum(lines)}"),
            ("lines of a file: median / nine in ten below / longest",
             f"{statistics.median(lines):.0f} / {quantile(lines, 0.9)} / {max(lines)}"),
            ("functions; lines: median / nine in ten below / longest",
             f"{len(functions)}; {statistics.median(functions):.0f} / {quantile(functions, 0.9)} / "
             f"{max(functions)}"),
            ("comments, of the lines that are not empty", f"{100 * comments / len(full):.1f} %"),
            ("components; includes between them",
             f"{len(graph)}; {sum(len(included) for included in graph.values())}"),
            ("folders; the fullest", f"{len(held)}; {fullest}"),
            ("components that include most others", widest),
            ("headers; reached from oslo_cpp/oslo.h", f"{len(headers)}; {len(public)}"),
            ("test programs; cases; lines",
             f"{len(programs)}; {cases}; {sum(p.read_text().count(chr(10)) for p in tests)}")]:
        print(f"{what:<58} {figure}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
