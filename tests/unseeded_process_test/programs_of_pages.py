#!/usr/bin/env python3
"""Makes programs of the C++ blocks in Markdown pages: programs_of_pages.py OUT SCAFFOLDS ROOT PAGE...

SCAFFOLDS is C++ that lacks the blocks. `// PROGRAM name, N ranks` begins a program, which defines
`run()` and says by a line `// BLOCK page#heading` where a block stands, as it is printed; the second
block below a heading is `page#heading:2`. What stands before the first program is for all of them.
`// COMPILED name` begins one that is compiled and not run.

Every block that a page marks as cpp is in a program, or says why not, in a comment on the line before:
`<!-- not compiled: reason -->`, `<!-- compiled, not run: reason -->`, or `<!-- excerpt: file -->`: its
lines follow each other in that file, which other tests compile and run. Anything else is an error: a block
without a program, a program of a block that is gone, a language that this script does not know."""
import pathlib
import re
import sys

NO_PROGRAMS = {"", "json", "python", "cmake", "sh", "bash", "text"}
MARK = re.compile(r"<!-- (not compiled|compiled, not run|excerpt): (\S.*) -->")


class Block:
    def __init__(self, page: str, line: int, mark: re.Match | None):
        self.page, self.line, self.lines, self.used = page, line, [], False
        self.mark, self.reason = mark.groups() if mark else ("", "")

    def is_in(self, file: pathlib.Path) -> bool:
        """Whether its lines follow each other there, but for how far they are indented."""
        def text(lines) -> str:
            return "\n".join(line.strip() for line in lines)
        return file.is_file() and text(self.lines) in text(file.read_text().splitlines())


def blocks_of(root: pathlib.Path, page: str, found: dict, errors: list) -> None:
    heading, block, before = "", None, ""
    fenced = False
    for number, line in enumerate((root / page).read_text().splitlines(), 1):
        if line.strip().startswith("~~~"):
            errors.append(f"{page}:{number}: begin and end a block with ```")
        if line.strip().startswith("```"):
            language = line.strip()[3:].strip()
            if fenced:
                fenced, block = False, None
            else:
                fenced = True
                if language == "cpp":
                    block = Block(page, number, MARK.fullmatch(before.strip()))
                    key, ordinal = f"{page}#{heading}", 2
                    while key in found:
                        key, ordinal = f"{page}#{heading}:{ordinal}", ordinal + 1
                    found[key] = block
                elif language not in NO_PROGRAMS:
                    errors.append(f"{page}:{number}: a block in {language}: is it C++? Then say cpp; "
                                  f"otherwise add it to {pathlib.Path(__file__).name}")
        elif block is not None:
            block.lines.append(line)
        elif not fenced and line.startswith("#"):
            heading = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower()).replace(" ", "-")
        before = line
    if fenced:
        errors.append(f"{page}: a block has no end")


def main() -> int:
    out, scaffolds, root, *pages = sys.argv[1:]
    blocks, errors, includes, body, programs = {}, [], [], [], []
    for page in pages:
        blocks_of(pathlib.Path(root), page, blocks, errors)
    name, runs = "", False

    def end_program() -> None:
        if name:
            body.append(f"}}  // namespace {name}")

    for number, line in enumerate(pathlib.Path(scaffolds).read_text().splitlines(), 1):
        begins = re.fullmatch(r"// (?:PROGRAM (\w+), (\d+) ranks?|COMPILED (\w+))", line)
        stands = re.fullmatch(r"\s*// BLOCK (\S+)", line)
        if begins:
            end_program()
            name, runs = begins[1] or begins[3], bool(begins[1])
            body += [f"namespace {name} {{", f'#line {number + 1} "{scaffolds}"']
            if runs:
                programs.append((name, int(begins[2])))
        elif stands:
            block = blocks.get(stands[1])
            if block is None:
                errors.append(f"{scaffolds}:{number}: no page has a block {stands[1]}")
                continue
            block.used = True
            if block.mark in ("not compiled", "excerpt"):
                errors.append(f"{block.page}:{block.line}: is compiled, and says that it is not")
            elif (block.mark == "compiled, not run") == runs:
                errors.append(f"{block.page}:{block.line}: is {'' if runs else 'not '}run; the comment "
                              f"before it says {block.mark or 'nothing'}")
            body.append(f'#line {block.line + 1} "{pathlib.Path(root) / block.page}"')
            for text in block.lines:
                # An ellipsis stands for what everybody has there.
                if text.startswith("#include"):
                    includes.append(text)
                    text = ""
                elif text.startswith("..."):
                    text = ""
                body.append(text)
            body.append(f'#line {number + 1} "{scaffolds}"')
        elif line.startswith("#include"):
            includes.append(line)
            body.append("")
        else:
            body.append(line)
    end_program()
    for key, block in blocks.items():
        if block.mark == "excerpt" and not block.is_in(pathlib.Path(root) / block.reason):
            errors.append(f"{block.page}:{block.line}: is not in {block.reason}")
        if not block.used and block.mark not in ("not compiled", "excerpt"):
            errors.append(f"{block.page}:{block.line}: no program has the block {key}: give it one in "
                          f"{scaffolds}, or write <!-- not compiled: reason --> on the line before it")
    if errors:
        print("\n".join(errors), file=sys.stderr)
        return 1
    table = [f'    {{"{name}", {ranks}, &{name}::run}},' for name, ranks in programs]
    pathlib.Path(out).write_text("\n".join(
        ["// Made by programs_of_pages.py.", *dict.fromkeys(includes), "namespace documented {",
         f'#line 1 "{scaffolds}"', *body,
         "struct Program {", "  const char* name;", "  int ranks;", "  void (*run)();", "};",
         "const Program kPrograms[] = {", *table, "};", "}  // namespace documented", ""]))
    return 0


sys.exit(main())
