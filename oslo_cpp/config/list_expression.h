#pragma once

#include <string_view>
#include <vector>

namespace oslo {

/// The numbers of a list written as Python writes one, as LiBai's documents do for stages:
///
///     read_list("[0]*6 + [1]*7 + [2]*7 + [3]*4")   // 24 numbers
///
/// Lists of whole numbers in brackets, `+` joins two, `*` repeats one; parentheses group. Throws
/// `ConfigError` naming the place for anything else, and for more than 65536 numbers. Linear in the
/// text and the numbers.
std::vector<int> read_list(std::string_view text);

}  // namespace oslo
