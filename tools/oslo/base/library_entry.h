#pragma once

#include <string>

namespace oslo::tool {

/// A function of liboslo_cpp, which lies beside this command; null, and an exit code, where the
/// library cannot be loaded or has it not. Says so on standard error in the name of `oslo command`.
void* library_entry(const char* command, const char* name, int& exit_code);

}  // namespace oslo::tool
