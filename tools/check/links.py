#!/usr/bin/env python3
"""Checks the relative links of the Markdown pages: the file exists, and so does the heading that an
anchor names. Prints each offence on a line of its own and exits with 1 where there is one."""
import pathlib
import re
import subprocess
import sys

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: pathlib.Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for line in CODE.sub("", page.read_text()).splitlines():
        if line.startswith("#"):
            title = line.lstrip("#").strip().lower()
            found.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return found


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    pages = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=root,
                           check=True, capture_output=True, text=True).stdout.split()
    offences, links = [], 0
    for name in pages:
        page = root / name
        for target in LINK.findall(CODE.sub("", page.read_text())):
            if re.match(r"[a-z]+:", target):
                continue
            links += 1
            path, _, anchor = target.partition("#")
            file = (page.parent / path) if path else page
            if not file.exists():
                offences.append(f"{name}: {target}: no such file")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                offences.append(f"{name}: {target}: no such heading")
    print("\n".join(offences) if offences else f"links: {links} in {len(pages)} pages lead somewhere")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
