#pragma once

#include <string>
#include <vector>

namespace oslo::tool {

/// Whether `program` is named like a file of `torch.export.save`: model.pt2.
bool is_exported(const std::string& program);

/// Lets liboslo_cpp print the plan of `words[0]`, an exported program; the other words are a config
/// file and overrides. The exit code of the command: 127 where there is no such file, 126 where the
/// library cannot be loaded.
int plan_exported(const std::vector<std::string>& words);

/// Lets liboslo_cpp print what is in the file `path`. Exit codes as above.
int inspect_exported(const std::string& path);

}  // namespace oslo::tool
