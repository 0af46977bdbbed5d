#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace oslo {

/// The cells of a line, from the left.
using TableRow = std::vector<std::string>;

/// Prints rows with their cells beneath each other: left-aligned columns as wide as their widest
/// cell, after two spaces and `indent` more.
void print_table(std::ostream& out, const std::vector<TableRow>& rows, size_t indent = 0);

}  // namespace oslo
