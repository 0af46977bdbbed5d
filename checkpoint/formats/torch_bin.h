#pragma once

#include <filesystem>

#include "checkpoint/formats/state_dict.h"

namespace oslo {

/// Writes `state` to `path` as Python's `torch.save(dict)` would: the default
/// `torch.load(path)` (weights_only=True) opens it as a dict of name to tensor. Names that share a
/// storage at one dtype share it in the file and after loading; of a storage only the range that
/// the tensors reach is written. Equal states give equal files.
///
/// Throws `Error` naming file and tensor for quantized, sparse or meta tensors, or a failed write.
void write_torch_bin(const std::filesystem::path& path, const StateDict& state);

/// Reads a file of `write_torch_bin` or of Python's `torch.save(model.state_dict(), path)`, any
/// device it came from, onto the CPU: sizes, strides and sharing as saved; `requires_grad` and
/// hooks are not restored.
///
/// The pickle inside is a program, so only the few operations and names that a state_dict needs
/// are understood; everything else is refused by name, and nothing is ever imported or called.
/// Throws `Error` naming the file, and the tensor or storage where there is one, for that, for a
/// cut file, a record that does not have its CRC-32 or is compressed, a missing storage, sizes that
/// do not fit it, the pre-2020 format without zip, a TorchScript archive, or a value that is no
/// tensor. Memory: the file, and at most half a gigabyte for the program inside.
StateDict read_torch_bin(const std::filesystem::path& path);

}  // namespace oslo
