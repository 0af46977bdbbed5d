#include "parallelizers/plan/report/fold.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

namespace oslo {
namespace {

using Parts = std::vector<std::string>;

Parts parts_of(const std::string& path) {
  Parts parts(1);
  for (const char c : path) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

bool is_number(const std::string& part) {
  return !part.empty() && part.size() < 10 &&
         part.find_first_not_of("0123456789") == std::string::npos;
}

/// The path with a star for every component that is a number.
std::string starred(const std::string& path) {
  std::string text;
  for (const std::string& part : parts_of(path)) {
    text += (text.empty() ? "" : ".") + (is_number(part) ? "*" : part);
  }
  return text;
}

/// Of "tied to h.0.up" and the like: every path in it with stars. Figures ("30.7 KB") are none.
std::string starred_text(const std::string& text) {
  std::string result, word;
  for (const char c : text + " ") {
    if (c != ' ') {
      word += c;
      continue;
    }
    const bool path = !word.empty() && std::isalpha(static_cast<unsigned char>(word[0])) != 0;
    result += (path ? starred(word) : word) + " ";
    word.clear();
  }
  result.pop_back();
  return result;
}

std::string why_of(const PlanEntry& entry) {
  return entry.tied_to.empty() ? entry.why : "tied to " + entry.tied_to;
}

/// What entries of one line have in common.
std::string fold_key(const PlanEntry& entry) {
  return c10::str(starred(entry.parameter), "|", entry.module_before, "|", entry.module_after, "|",
                  entry.placement, "|", c10::IntArrayRef(entry.global_shape), "|",
                  c10::IntArrayRef(entry.local_shape), "|", entry.local_bytes, "|",
                  c10::IntArrayRef(std::vector<int64_t>(entry.stages.begin(), entry.stages.end())),
                  "|", starred_text(why_of(entry)));
}

/// {0, 2, 3, 4} as "0,2-4".
std::string ranges(const std::set<int>& numbers) {
  std::string text;
  for (auto first = numbers.begin(); first != numbers.end();) {
    auto last = first, next = std::next(first);
    while (next != numbers.end() && *next == *last + 1) last = next++;
    text += (text.empty() ? "" : ",") + std::to_string(*first);
    if (*last != *first) text += (*last == *first + 1 ? "," : "-") + std::to_string(*last);
    first = next;
  }
  return text;
}

/// One name for all; `all` says whether nobody else is called like this.
std::string shared_name(const std::vector<const PlanEntry*>& entries, bool all) {
  if (entries.size() == 1) return entries.front()->parameter;
  std::vector<std::set<std::string>> seen(parts_of(entries.front()->parameter).size());
  for (const PlanEntry* entry : entries) {
    const Parts parts = parts_of(entry->parameter);
    for (size_t i = 0; i < seen.size(); ++i) seen[i].insert(parts[i]);
  }
  std::string name;
  for (const std::set<std::string>& part : seen) {
    if (!name.empty()) name += ".";
    if (part.size() == 1) {
      name += *part.begin();
    } else if (all) {
      name += "*";
    } else {
      std::set<int> numbers;
      for (const std::string& number : part) numbers.insert(std::stoi(number));
      name += "{" + ranges(numbers) + "}";
    }
  }
  return name;
}

}  // namespace

std::vector<FoldedEntry> fold(const std::vector<PlanEntry>& entries) {
  std::vector<FoldedEntry> lines;
  std::map<std::string, size_t> line_of;
  std::map<std::string, int> called;  // lines by starred name
  for (const PlanEntry& entry : entries) {
    const auto [found, added] = line_of.emplace(fold_key(entry), lines.size());
    if (added) {
      lines.emplace_back();
      ++called[starred(entry.parameter)];
    }
    lines[found->second].entries.push_back(&entry);
  }
  for (FoldedEntry& line : lines) {
    const bool one = line.entries.size() == 1;
    line.name = shared_name(line.entries, called[starred(line.entries.front()->parameter)] == 1);
    const std::string why = why_of(*line.entries.front());
    line.why = one ? why : starred_text(why);
  }
  return lines;
}

}  // namespace oslo
