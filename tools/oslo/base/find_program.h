#pragma once

#include <string>

namespace oslo::tool {

/// Where `program` lies, searched in PATH as a shell does. Without one it says so on standard error
/// in the name of `command`, and `exit_code` is 126 (it cannot be executed) or 127 (it is not
/// there).
std::string find_program(const std::string& program, const std::string& command, int& exit_code);

}  // namespace oslo::tool
