#pragma once

#include <string>
#include <vector>

namespace oslo::tool {

/// "NAME=value" of the variables by which the ranks' malloc keeps what they free, for them to take
/// again (`MallocSettings`); none where this process's environment sets up malloc already. glibc
/// reads whole numbers of bytes there: "1G" would be one byte.
std::vector<std::string> malloc_environment();

}  // namespace oslo::tool
