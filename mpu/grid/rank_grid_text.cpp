// RankGrid::to_string: the ranks as a drawing, and the groups of every axis.
#include <algorithm>
#include <sstream>

#include "mpu/base/error.h"
#include "mpu/grid/rank_grid.h"

namespace oslo {
namespace {

constexpr int kMostDrawn = 64;  ///< ranks of a grid that is drawn
constexpr size_t kMostListed = 8;

std::string padded(std::string text, size_t width, bool right = false) {
  const std::string fill(width > text.size() ? width - text.size() : 0, ' ');
  return right ? fill + text : text + fill;
}

/// The items that fit a line: all, or the first ones and the last.
template <typename T, typename Text>
std::string abridged(const std::vector<T>& items, const Text& text) {
  std::string line;
  for (size_t i = 0; i < items.size(); ++i) {
    const bool left_out = items.size() > kMostListed && i >= kMostListed - 2;
    if (left_out && i == kMostListed - 2) line += " ..";
    if (left_out && i + 1 < items.size()) continue;
    line += (line.empty() ? "" : " ") + text(items[i]);
  }
  return line;
}

/// The ranks along the last two axes as rows and columns; for each place of the axes before them a
/// block of its own, with a title.
///
///     data 0      tensor 0  1
///       row 0            0  1
///       row 1            2  3
std::string drawing(const std::vector<Axis>& axes, int ranks) {
  const Axis columns = axes.empty() ? Axis{"", 1} : axes.back();
  const Axis rows = axes.size() < 2 ? Axis{"", 1} : axes[axes.size() - 2];
  const std::vector<Axis> outer(axes.begin(), axes.end() - std::min<size_t>(2, axes.size()));
  const size_t digits = std::to_string(ranks - 1).size();
  const auto title_of = [&](int block) {
    std::string title;
    for (size_t i = outer.size(); i-- > 0; block /= outer[i].size) {
      title = c10::str(outer[i].name, " ", block % outer[i].size, title.empty() ? "" : ", ", title);
    }
    return title;
  };
  const auto row_name = [&](int row) {
    return rows.name.empty() ? "" : c10::str("  ", rows.name, " ", row);
  };
  const int per_block = rows.size * columns.size;
  const int blocks = ranks / per_block;
  const size_t side = std::max(title_of(blocks - 1).size(), row_name(rows.size - 1).size());
  std::ostringstream text;
  const auto line = [&](const std::string& name, const std::string& head, const auto& cell) {
    std::string line = "  " + padded(name, side) + "  " + padded(head, columns.name.size());
    for (int i = 0; i < columns.size; ++i)
      line += "  " + padded(std::to_string(cell(i)), digits, true);
    text << line << "\n";
  };
  for (int block = 0; block < blocks; ++block) {
    line(title_of(block), columns.name, [](int i) { return i; });
    for (int row = 0; row < rows.size; ++row) {
      line(row_name(row), "", [&](int i) { return block * per_block + row * columns.size + i; });
    }
  }
  return text.str();
}

std::string group_text(const std::vector<int>& ranks) {
  return "[" + abridged(ranks, [](int rank) { return std::to_string(rank); }) + "]";
}

}  // namespace

std::string RankGrid::to_string() const {
  std::vector<Axis> wide;
  for (const Axis& axis : axes_) {
    if (axis.size > 1) wide.push_back(axis);
  }
  const int ranks = size();
  std::ostringstream text;
  text << ranks << (ranks == 1 ? " rank" : " ranks");
  if (!axes_.empty()) text << " = " << factors(axes_);
  text << "\n";
  if (ranks > 1 && ranks <= kMostDrawn) text << drawing(wide, ranks);
  std::vector<std::string> names;
  for (const Axis& axis : axes_) names.insert(names.begin(), axis.name);
  for (const std::string joined : {"tensor", "model"}) {
    if (parts(joined).size() > 1) names.push_back(joined);
  }
  if (!names.empty()) text << "  groups\n";
  size_t widest = 0;
  for (const std::string& name : names) widest = std::max(widest, name.size());
  for (const std::string& name : names) {
    const auto rows = groups(name);
    text << "    " << padded(name, widest) << "  " << rows.size() << " of " << size(name) << ": "
         << abridged(rows, group_text) << "\n";
  }
  return text.str();
}

}  // namespace oslo
