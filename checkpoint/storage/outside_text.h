#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

/// Text that came from outside: a file, a command line, another program.
namespace oslo {

/// Whether `text` is UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above
/// U+10FFFF.
bool is_utf8(std::string_view text);

/// `text` for a message: cut with "..." after `longest` bytes; control characters (a NUL would end
/// the message) are written as JSON escapes, what is not UTF-8 as U+FFFD.
std::string printable(std::string_view text, size_t longest = 100);

/// The same for a path, with room for all that people use.
std::string printable_path(const std::filesystem::path& path);

}  // namespace oslo
