// Every option of a public header and every key of the config has a test that shows what it does,
// or that it is refused. A new one fails here until it is named.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "oslo_cpp/config/config_schema.h"
#include "tests/config_test/option_tests.h"

namespace oslo::config_test {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = OSLO_SOURCE_DIR;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// What the pattern's first group finds.
void add_all(const std::string& text, const std::string& pattern, const std::string& prefix,
             std::set<std::string>& found) {
  const std::regex wanted(pattern);
  for (auto at = std::sregex_iterator(text.begin(), text.end(), wanted);
       at != std::sregex_iterator(); ++at) {
    found.insert(prefix + (*at)[1].str());
  }
}

/// "SaveOptions::format" for all classes of options that the library's headers define.
std::set<std::string> declared_options() {
  std::set<std::string> found;
  const std::regex begins(R"((?:^|\n)(class|struct) (\w+Options)\b[^;{]*\{)");
  for (const char* floor : {"mpu", "parallelizers", "checkpoint", "oslo_cpp"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kSource / floor)) {
      if (entry.path().extension() != ".h") continue;
      const std::string text = text_of(entry.path());
      for (auto at = std::sregex_iterator(text.begin(), text.end(), begins);
           at != std::sregex_iterator(); ++at) {
        const auto from = static_cast<size_t>(at->position() + at->length());
        const std::string body = text.substr(from, text.find("\n};", from) - from);
        const std::string name = (*at)[2].str(), prefix = name + "::";
        add_all(body, name + R"(& (\w+)\()", prefix, found);
        add_all(body, R"(TORCH_ARG\([^,]*, (\w+)\))", prefix, found);
        if ((*at)[1].str() != "struct") continue;
        add_all(body,
                R"(\n  (?!using|friend|return)[A-Za-z][\w:<>() ]* (\w*[a-z0-9])(?: = [^;]*)?;)",
                prefix, found);
      }
    }
  }
  return found;
}

/// "train.dist.tensor_parallel_size", for all keys that take a value.
void add_keys(const ConfigKey& key, const std::string& path, std::set<std::string>& found) {
  for (const ConfigKey& child : key.keys) {
    const std::string child_path = join_keys(path, child.name);
    if (child.keys.empty()) found.insert(child_path);
    add_keys(child, child_path, found);
  }
}

void expect_tested(const OptionTests& tests, const std::set<std::string>& declared) {
  std::set<std::string> named;
  for (const OptionTest& each : tests) {
    EXPECT_TRUE(named.insert(each.option).second) << each.option << " is there twice";
    const fs::path path = kSource / "tests" / each.file;
    ASSERT_TRUE(fs::exists(path)) << path;
    const std::string text = text_of(path), test = each.test;
    const size_t dot = test.find('.');
    const std::regex defined(R"(TEST(_F|_P)?\(\s*)" + test.substr(0, dot) + R"(,\s*)" +
                             test.substr(dot + 1) + R"(\))");
    EXPECT_TRUE(std::regex_search(text, defined)) << each.file << " has no test " << test;
    const std::string seen =
        each.seen.empty() ? each.option.substr(each.option.find_last_of(".:") + 1) : each.seen;
    EXPECT_NE(text.find(seen), std::string::npos) << each.file << " does not speak of " << seen;
  }
  for (const std::string& option : declared) {
    EXPECT_EQ(named.count(option), 1u)
        << option << " has no test: add one, and its name to tests/config_test/option_tests.h";
  }
  for (const std::string& option : named) {
    EXPECT_EQ(declared.count(option), 1u) << option << " is there no more";
  }
}

TEST(EveryOption, OfAPublicHeaderHasATest) {
  const std::set<std::string> declared = declared_options();
  EXPECT_GE(declared.size(), 50u);
  expect_tested(option_tests(), declared);
}

TEST(EveryOption, OfTheConfigHasATest) {
  std::set<std::string> declared;
  add_keys(config_schema(ConfigDialect::none), "", declared);
  EXPECT_GE(declared.size(), 30u);
  expect_tested(config_key_tests(), declared);
}

}  // namespace
}  // namespace oslo::config_test
