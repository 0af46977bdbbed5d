#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>

namespace oslo {

/// `text` without what follows its first line.
std::string first_line(std::string_view text);

/// What an exception says, without the stack trace that LibTorch's carry.
std::string message_of(const std::exception& error);

/// The first line in which two texts differ, as either has it; "(nothing)" past a text's end. Two
/// empty ones where the texts are equal.
std::pair<std::string, std::string> first_difference(std::string_view a, std::string_view b);

}  // namespace oslo
