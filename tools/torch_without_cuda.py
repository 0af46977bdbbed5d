#!/usr/bin/env python3
"""Makes the torch of one environment importable in another, without CUDA's libraries.

usage: torch_without_cuda.py FROM TO     (FROM, TO: environments of `python -m venv`)

PyPI's torch is linked against some 2.5 GB of CUDA libraries, which our builds, that use its
libtorch_cpu, do not install. In TO this leaves a path to FROM's packages, and for each library that
FROM lacks a stand-in whose functions abort, loaded whenever TO's Python starts. CPU tensors need none
of them. Nothing in FROM is changed. Needs nm, readelf and gcc.
"""
import pathlib
import re
import subprocess
import sys

OF_CUDA = re.compile(r"(lib)?(cu|nccl|nv)")


def packages(environment: str) -> pathlib.Path:
    found = sorted(pathlib.Path(environment).resolve().glob("lib/python3*/site-packages"))
    if not found:
        sys.exit(f"torch_without_cuda.py: {environment} is no environment of python -m venv")
    return found[0]


def printed(*command) -> str:
    return subprocess.run([str(word) for word in command], check=True, capture_output=True,
                          text=True).stdout


def needed(library: pathlib.Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.*)\]", printed("readelf", "-d", library))


def symbols(library: pathlib.Path, kind: str) -> set[str]:
    """Names without versions; `kind` is defined or undefined."""
    lines = printed("nm", "-D", f"--{kind}-only", library).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line.split()}


def compile_stand_in(path: pathlib.Path, functions: list[str]) -> None:
    source = "#include <stdlib.h>\n"
    source += "".join(f"void {name}(void) {{ abort(); }}\n" for name in functions)
    subprocess.run(["gcc", "-w", "-fno-builtin", "-shared", "-fPIC", "-x", "c", "-",
                    f"-Wl,-soname,{path.name}", "-o", str(path)], input=source, text=True,
                   check=True)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, target = packages(sys.argv[1]), packages(sys.argv[2])
    libraries = sorted((source / "torch/lib").glob("*.so*"))
    beside = sorted(source.glob("nvidia/*/lib/*.so*"))
    there = {path.name for path in libraries + beside}
    wanted = {name for library in libraries for name in needed(library)}
    missing = sorted(name for name in wanted - there if OF_CUDA.match(name))
    undefined = set().union(*(symbols(path, "undefined") for path in libraries))
    defined = set().union(*(symbols(path, "defined") for path in libraries + beside))
    functions = sorted(name for name in undefined - defined if OF_CUDA.match(name))

    folder = target.parents[2] / "no-cuda"
    folder.mkdir(exist_ok=True)
    for name in missing:  # each with all functions: whoever needs one finds them
        compile_stand_in(folder / name, functions)
    loads = "".join(f"ctypes.CDLL({str(folder / name)!r})\n" for name in missing)
    (target / "no_cuda.py").write_text(f"import ctypes\n{loads}")
    (target / "torch.pth").write_text(f"{source}\nimport no_cuda\n")


if __name__ == "__main__":
    main()
