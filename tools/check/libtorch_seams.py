#!/usr/bin/env python3
"""Checks that the library comes into LibTorch in one room.

docs/libtorch.md lists the places where the library changes something that LibTorch has one of in a
process, or of a tensor. What does so is called in parallelizers/libtorch/ only (a signal's handler in
mpu/transport/backends/broken_pipes.cpp). Prints each offence on a line of its own and exits with 1
where there is one.
"""
import pathlib
import re
import sys

FLOORS = ["mpu", "parallelizers", "checkpoint", "oslo_cpp"]
ROOM = "parallelizers/libtorch/"
ELSEWHERE = {"sigaction": "mpu/transport/backends/broken_pipes.cpp"}
SEAMS = ["TORCH_LIBRARY_IMPL", "TORCH_LIBRARY_FRAGMENT", "torch::Library", "SetVariableHooks",
         "set_default_engine_stub", "get_default_saved_variable_hooks",
         "GetBackendMetaSerialization", "TensorBackendMetaRegistry", "BackendMeta", "get_backend_meta",
         "set_backend_meta", "fw_grad_", "DispatchKey::DeferredInit",
         "DispatchKey::Fake", "sigaction"]


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    words = re.compile(r"(?<![\w:])(?:\w+::)*(" + "|".join(map(re.escape, SEAMS)) + r")\b(?!_)")
    offences = []
    for floor in FLOORS:
        for path in sorted((root / floor).rglob("*")):
            if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
                continue
            name = path.relative_to(root).as_posix()
            if name.startswith(ROOM):
                continue
            code = re.sub(r"//[^\n]*", "", path.read_text())
            for word in sorted({found.group(1) for found in words.finditer(code)}):
                if ELSEWHERE.get(word) != name:
                    offences.append(f"{name} uses {word}, which belongs into {ROOM} (docs/libtorch.md)")
    print("\n".join(offences) if offences else f"LibTorch's seams: all in {ROOM}")
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
