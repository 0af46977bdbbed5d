"""Prints what a file of a checkpoint holds, as Python reads it: one line of JSON with the reader's
name and, of every tensor, its type, its shape and the SHA-256 of its values.

    python read_state.py pytorch_model.bin
    python read_state.py model.safetensors

By torch.load and safetensors where those are installed. Otherwise by Python's own unpickler, which
meets nothing but what torch.load allows a file of weights, and by the formats' descriptions.
"""
import collections
import hashlib
import json
import pickle
import struct
import sys
import zipfile

# By the names of torch's storages and of safetensors: the type and the bytes of an element.
TYPES = {
    "DoubleStorage": ("float64", 8), "FloatStorage": ("float32", 4), "HalfStorage": ("float16", 2),
    "BFloat16Storage": ("bfloat16", 2), "LongStorage": ("int64", 8), "IntStorage": ("int32", 4),
    "BoolStorage": ("bool", 1),
    "F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2),
    "I64": ("int64", 8), "I32": ("int32", 4), "BOOL": ("bool", 1),
}


def described(dtype: str, shape, values: bytes) -> list:
    return [dtype, list(shape), hashlib.sha256(values).hexdigest()]


def by_torch(state) -> dict:
    import torch

    found = {}
    for name, tensor in state.items():
        values = bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())
        found[name] = described(str(tensor.dtype).removeprefix("torch."), tensor.shape, values)
    return found


class Unpickler(pickle.Unpickler):
    """Of torch.save's archives: makes descriptions of tensors in their place."""

    def __init__(self, archive: zipfile.ZipFile, folder: str):
        super().__init__(archive.open(f"{folder}/data.pkl"))
        self.archive, self.folder = archive, folder

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self.rebuild
        if module == "torch" and name in TYPES:
            return TYPES[name]
        raise pickle.UnpicklingError(f"{module}.{name} is not for a file of weights")

    def persistent_load(self, storage):
        kind, (dtype, size), key, _, number = storage
        values = self.archive.read(f"{self.folder}/data/{key}")
        if kind != "storage" or len(values) < number * size:
            raise pickle.UnpicklingError(f"storage {key} has {len(values)} bytes, not {number} x {size}")
        return dtype, size, values

    @staticmethod
    def rebuild(storage, offset, shape, strides, *_):
        dtype, size, values = storage
        places = [offset]
        for length, stride in zip(shape, strides):
            places = [place + i * stride for place in places for i in range(length)]
        return described(dtype, shape, b"".join(values[p * size:(p + 1) * size] for p in places))


def read_bin(path: str) -> tuple[str, dict]:
    try:
        import torch
    except Exception:  # not there, or without what it needs
        archive = zipfile.ZipFile(path)
        if archive.testzip() is not None:
            raise SystemExit(f"{path}: {archive.testzip()} is damaged")
        folder = next(n for n in archive.namelist() if n.endswith("/data.pkl")).split("/")[0]
        return "pickle", dict(Unpickler(archive, folder).load())
    return f"torch {torch.__version__}", by_torch(torch.load(path, weights_only=True))


def read_safetensors(path: str) -> tuple[str, dict]:
    try:
        import safetensors
        from safetensors.torch import load_file
    except Exception:
        with open(path, "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            values = file.read()
        header.pop("__metadata__", None)
        return "json", {name: described(TYPES[entry["dtype"]][0], entry["shape"],
                                        values[slice(*entry["data_offsets"])])
                        for name, entry in header.items()}
    return f"safetensors {safetensors.__version__}", by_torch(load_file(path))


def main():
    path = sys.argv[1]
    reader, state = (read_bin if path.endswith(".bin") else read_safetensors)(path)
    print(json.dumps({"reader": reader, "state": state}))


main()
