#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/tool_process.h"

namespace oslo::test {

inline const std::string kConfigs = OSLO_SOURCE_DIR "/tutorials/configs/";

/// The numbers called `name` of metrics.json, in their order.
inline std::vector<double> metrics_of(const std::filesystem::path& output,
                                      const std::string& name) {
  std::vector<double> numbers;
  for (const std::string& line : lines_of(contents(output / "metrics.json"))) {
    const auto entry = nlohmann::json::parse(line);
    if (entry.contains(name)) numbers.push_back(entry[name]);
  }
  return numbers;
}

/// Runs `oslo train` with these words, and expects that it succeeds. Its standard output.
inline std::string train(const Words& words) {
  Words all = {"train"};
  all.insert(all.end(), words.begin(), words.end());
  ToolProcess process(all);
  EXPECT_EQ(process.finish(), 0) << process.error();
  return process.output();
}

inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace oslo::test
