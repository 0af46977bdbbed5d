#pragma once

#include <string>
#include <vector>

namespace oslo::tool {

/// Whether `program` is named like a shared library: net.so, net.so.1.
bool is_library(const std::string& program);

/// Loads `words[0]`, a library with OSLO_MODEL_LIBRARY in it, and lets it print the plan of its
/// model; the other words are for it. The exit code of the command: 126 for a library that cannot
/// be loaded, 127 if it is not there.
int plan_library(const std::vector<std::string>& words);

}  // namespace oslo::tool
