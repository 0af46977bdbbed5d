#!/usr/bin/env python3
"""Checks who includes whom, and how much a folder holds.

A component is a header with its source file of the same name. A floor may include itself and the
floors below it only. No component may be part of a circle, nor a folder. The files that lie in a
folder itself count as one more folder in it there: those who use them and those whom they use are
different folders. A source file includes its own header first, so that this header is compiled alone
wherever the file is. No folder holds more than FULL source files. Some rooms do not know what lies
below them, either (UNKNOWN). Prints each offence on a line of its own and exits with 1 where there
is one.
"""
import pathlib
import re
import sys

# From the bottom up.
FLOORS = ["mpu", "parallelizers", "checkpoint", "oslo_cpp"]
# The command stands on all of them.
ROOMS = FLOORS + ["tools"]
FULL = 25
# Rules know tensors and layouts. Where values live, and what an operator is on those that are
# elsewhere, a call takes care of.
UNKNOWN = {"parallelizers/placement/rules/": ("parallelizers/placement/residency/",
                                              "parallelizers/placement/elsewhere/")}
SOURCES = (".h", ".cpp", ".cu", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def components(root: pathlib.Path) -> dict[str, set[str]]:
    """component -> the components that it includes."""
    found: dict[str, set[str]] = {}
    for floor in ROOMS:
        for path in sorted((root / floor).rglob("*")):
            if path.suffix not in SOURCES:
                continue
            name = path.relative_to(root).with_suffix("").as_posix()
            included = found.setdefault(name, set())
            for target in INCLUDE.findall(path.read_text()):
                if not (root / target).exists():
                    continue
                other = pathlib.PurePosixPath(target).with_suffix("").as_posix()
                if other != name:
                    included.add(other)
    return found


def own_headers_last(root: pathlib.Path) -> list[str]:
    """The source files whose own header is not what they include first."""
    found = []
    for floor in ROOMS:
        for source in sorted((root / floor).rglob("*.cpp")):
            header = source.with_suffix(".h")
            if not header.exists():
                continue
            first = re.search(r"^\s*#\s*include\s+(\S+)", source.read_text(), re.MULTILINE)
            own = f'"{header.relative_to(root).as_posix()}"'
            if first is None or first.group(1) != own:
                found.append(f"{source.relative_to(root)} does not include {own} first")
    return found


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one member (Tarjan, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    on_stack: set[str] = set()
    stack: list[str] = []
    result = []
    for root in graph:
        if root in index:
            continue
        work = [(root, iter(sorted(graph[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, successors = work[-1]
            for successor in successors:
                if successor not in graph:
                    continue
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on_stack.add(successor)
                    work.append((successor, iter(sorted(graph[successor]))))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    members = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        members.append(member)
                        if member == node:
                            break
                    if len(members) > 1:
                        result.append(sorted(members))
    return result


def between_folders(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """folder -> the folders beside it that it includes from.

    "a/b/" is a folder in "a/", "a/." are the files that lie in "a/" itself.
    """
    folders: dict[str, set[str]] = {}
    for name, included in graph.items():
        for other in included:
            own, its = name.split("/")[:-1], other.split("/")[:-1]
            same = 0
            while same < min(len(own), len(its)) and own[same] == its[same]:
                same += 1
            if same == len(own) == len(its):
                continue
            around = "".join(part + "/" for part in own[:same])
            own_folder = around + (own[same] + "/" if same < len(own) else ".")
            its_folder = around + (its[same] + "/" if same < len(its) else ".")
            folders.setdefault(own_folder, set()).add(its_folder)
            folders.setdefault(its_folder, set())
    return folders


def too_full(root: pathlib.Path) -> list[str]:
    """The folders with more than FULL source files."""
    held: dict[pathlib.Path, int] = {}
    for floor in ROOMS:
        for path in (root / floor).rglob("*"):
            if path.suffix in SOURCES:
                held[path.parent] = held.get(path.parent, 0) + 1
    return [f"{folder.relative_to(root)} holds {count} source files, more than {FULL}"
            for folder, count in sorted(held.items()) if count > FULL]


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    graph = components(root)
    offences = []
    for name, included in graph.items():
        own = ROOMS.index(name.split("/")[0])
        for other in sorted(included):
            floor = other.split("/")[0]
            if floor not in ROOMS or ROOMS.index(floor) > own:
                offences.append(f"{name} includes {other}, which is not below it")
            for room, others in UNKNOWN.items():
                if name.startswith(room) and other.startswith(others):
                    offences.append(f"{name} includes {other}, of which {room} knows nothing")
    offences += own_headers_last(root) + too_full(root)
    offences += ["a circle of includes: " + " ".join(members)
                 for members in circles(graph) + circles(between_folders(graph))]
    print("\n".join(offences) if offences else
          f"includes: {len(graph)} components, none upwards, no circle, no folder above {FULL} files")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
