// What docs/adding-a-rule.md shows of an operator of one's own is what the tutorial says, which is
// compiled and run.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/files.h"

namespace {

using oslo::test::contents;

TEST(UserOperators, TheDocumentShowsTheTutorial) {
  const std::string source = OSLO_SOURCE_DIR;
  const std::string program = contents(source + "/tutorials/own_operator.cpp");
  const std::string page = contents(source + "/docs/adding-a-rule.md");
  const std::string open = "```cpp\n", close = "```\n";
  const size_t begin = page.find("## 5. An operator of your own"), end = page.find("\n## ", begin);
  ASSERT_NE(begin, std::string::npos);
  int blocks = 0;
  for (size_t at = page.find(open, begin); at < end; at = page.find(open, at)) {
    at += open.size();
    const std::string block = page.substr(at, page.find(close, at) - at);
    EXPECT_NE(program.find(block), std::string::npos) << block;
    ++blocks;
  }
  EXPECT_EQ(blocks, 3);
}

}  // namespace
