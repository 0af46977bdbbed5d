#pragma once

#include <filesystem>
#include <string>

namespace oslo {

/// A text about a file of `torch.export.save`: what wrote it, inputs and results, modules with the
/// sizes of their tensors, and how often each operator is called. Reads no weights; whether the
/// program can be loaded is `load_exported`'s to say. Throws `Error` where the file cannot be read.
std::string describe_exported(const std::filesystem::path& path);

}  // namespace oslo
