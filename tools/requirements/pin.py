#!/usr/bin/env python3
"""Writes a file of requirements whose downloads pip checks by hash (--require-hashes).

usage: pin.py FILE [--no-deps] REQUIREMENT...

pip says which versions the requirements come to on this machine; PyPI says the hashes of all Linux
wheels of these versions, so that one file serves every Python and architecture that there are
wheels for. Run it with the Python that the versions are to be chosen for.
"""
import json
import pathlib
import re
import subprocess
import sys
import urllib.request

SIMPLE = "https://pypi.org/simple/{}/"
JSON = "application/vnd.pypi.simple.v1+json"
WHEEL = re.compile(r"-(cp3\d+|py3|py2\.py3)-[^-]+-(any|manylinux.*)\.whl$")
HEAD = ("# Made by tools/requirements/pin.py {}\n"
        "# Each with the hashes of its Linux wheels, whatever the Python and the architecture.\n")


def resolved(arguments: list[str]) -> list[tuple[str, str]]:
    """Name and version of each package that pip would install."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet",
           "--dry-run", "--ignore-installed", "--report", "-"]
    report = json.loads(subprocess.run(pip + arguments, check=True, capture_output=True).stdout)
    return sorted((each["metadata"]["name"].lower().replace("_", "-"), each["metadata"]["version"])
                  for each in report["install"])


def hashes(name: str, version: str) -> list[str]:
    request = urllib.request.Request(SIMPLE.format(name), headers={"Accept": JSON})
    with urllib.request.urlopen(request) as answer:
        files = json.load(answer)["files"]
    begin = f"{name}-{version}-".replace("-", "_")
    return sorted(each["hashes"]["sha256"] for each in files
                  if each["filename"].lower().replace("-", "_").startswith(begin)
                  and WHEEL.search(each["filename"]))


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    target, arguments = pathlib.Path(sys.argv[1]), sys.argv[2:]
    text = HEAD.format(" ".join([target.name] + arguments))
    for name, version in resolved(arguments):
        found = hashes(name, version)
        if not found:
            sys.exit(f"{name} {version} has no wheel for Linux")
        text += " \\\n".join([f"{name}=={version}"] + [f"    --hash=sha256:{each}" for each in found])
        text += "\n"
    target.write_text(text)


if __name__ == "__main__":
    main()
