// The environment variables that the library reads: the page lists all of them, nothing else reads
// any, and a wrong value is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <regex>
#include <set>
#include <string>

#include "mpu/base/environment.h"
#include "mpu/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/files.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const fs::path kRoot = OSLO_SOURCE_DIR;

/// "OSLO_TIMEOUT" for each that `pattern`'s group finds in `text`.
std::set<std::string> found_in(const std::string& text, const char* pattern) {
  const std::regex wanted(pattern);
  std::set<std::string> found;
  for (auto at = std::sregex_iterator(text.begin(), text.end(), wanted);
       at != std::sregex_iterator(); ++at) {
    found.insert((*at)[1]);
  }
  return found;
}

TEST(Environment, ThePageListsAllVariables) {
  const std::string page = test::contents(kRoot / "docs/configuration.md");
  std::set<std::string> names;
  for (const VariableRow& row : kVariables) {
    names.insert(row.name);
    EXPECT_THAT(page, HasSubstr(std::string("| `") + row.name + "` | " + row.meaning + " | " +
                                row.values_text() + " | " + row.unset + " |\n"));
  }
  EXPECT_EQ(found_in(page, "\\| `(OSLO_[A-Z_]+)` \\|"), names);
}

TEST(Environment, HasOneReader) {
  for (const char* floor : {"mpu", "parallelizers", "checkpoint", "oslo_cpp", "tools"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / floor)) {
      if (entry.path().extension() != ".cpp" && entry.path().extension() != ".h") continue;
      const std::string text = test::contents(entry.path());
      EXPECT_TRUE(found_in(text, "getenv\\(\"(OSLO_[A-Z_]+)").empty()) << entry.path();
    }
  }
}

TEST(Environment, AWrongValueIsRefusedByName) {
  setenv("OSLO_VERBOSE", "yes", /*overwrite=*/1);
  EXPECT_EQ(test::error_of([] { read_switch(Variable::verbose); }),
            "OSLO_VERBOSE is 'yes'; set it to 0 or 1, or unset it");
  EXPECT_THROW(read_switch(Variable::verbose), ConfigError);
  setenv("OSLO_VERBOSE", "1", 1);
  EXPECT_EQ(read_switch(Variable::verbose), true);
  setenv("OSLO_VERBOSE", "", 1);
  EXPECT_EQ(read_switch(Variable::verbose), std::nullopt);
  unsetenv("OSLO_VERBOSE");
  EXPECT_EQ(read_switch(Variable::verbose), std::nullopt);
}

}  // namespace
}  // namespace oslo
