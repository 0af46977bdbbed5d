// docs/seeds.md names a program or a test for each feature; a test that is not in the file beside
// it fails here. That the files are there, ./dev check sees.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

namespace oslo::test {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool has_test(const std::string& text, const std::string& suite, const std::string& name) {
  return std::regex_search(text,
                           std::regex("TEST(_F|_P)?\\(\\s*" + suite + ",\\s*" + name + "\\)"));
}

/// "`Suite.Name`, `Suite.Other` in [file.cpp](../tests/file.cpp)".
TEST(Seeds, EveryTestThatThePageNamesIsThere) {
  const fs::path docs = fs::path(OSLO_SOURCE_DIR) / "docs";
  std::istringstream page(text_of(docs / "seeds.md"));
  const std::regex places(R"(((?:`\w+\.\w+`(?:, )?)+) in \[[^\]]+\]\((\.\./tests/[^)]+)\))");
  const std::regex names(R"(`(\w+)\.(\w+)`)");
  int rows = 0, tests = 0;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("## ", 0) == 0) {
      inside = line.rfind("## LiBai", 0) == 0 || line.rfind("## Colossal-AI", 0) == 0;
    }
    const bool row = inside && line.rfind("| ", 0) == 0 && line.rfind("| **", 0) != 0 &&
                     line.rfind("| there", 0) != 0;
    if (!row) continue;
    ++rows;
    int named = 0;
    for (auto place = std::sregex_iterator(line.begin(), line.end(), places);
         place != std::sregex_iterator(); ++place) {
      const std::string tests_named = (*place)[1].str(), file = (*place)[2].str();
      const std::string text = text_of(docs / file);
      for (auto name = std::sregex_iterator(tests_named.begin(), tests_named.end(), names);
           name != std::sregex_iterator(); ++name, ++named) {
        EXPECT_TRUE(has_test(text, (*name)[1], (*name)[2])) << file << ": " << (*name)[0];
      }
    }
    EXPECT_GT(named, 0) << "no test in: " << line;
    tests += named;
  }
  EXPECT_GE(rows, 100);
  EXPECT_GE(tests, rows);
}

/// All of a test program's sources.
std::string sources_of(const std::string& program) {
  const fs::path tests = fs::path(OSLO_SOURCE_DIR) / "tests";
  std::string text = text_of(tests / (program + ".cpp"));
  if (!fs::is_directory(tests / program)) return text;
  for (const auto& file : fs::directory_iterator(tests / program)) text += text_of(file.path());
  return text;
}

/// "`mpu_test`, `Mpu.GroupsReachTheirMembersInBothOrders`", or without the suite.
TEST(Seeds, EveryTestOfOslosTablesIsThere) {
  const std::string page = text_of(fs::path(OSLO_SOURCE_DIR) / "docs" / "seeds.md");
  const size_t begin = page.find("## OSLO");
  ASSERT_NE(begin, std::string::npos);
  const std::string oslo = page.substr(begin);
  const std::regex named(R"(`(\w+_test)`, `(?:(\w+)\.)?(\w+)`)");
  int tests = 0;
  for (auto at = std::sregex_iterator(oslo.begin(), oslo.end(), named);
       at != std::sregex_iterator(); ++at, ++tests) {
    const std::string suite = (*at)[2].matched ? (*at)[2].str() : "\\w+";
    EXPECT_TRUE(has_test(sources_of((*at)[1]), suite, (*at)[3])) << (*at)[0];
  }
  EXPECT_GE(tests, 10);
}

}  // namespace
}  // namespace oslo::test
