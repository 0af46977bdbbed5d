#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <sstream>
#include <tuple>

#include "tests/gallery_test/exhibit.h"

namespace gallery {

std::string name_of(const Layout& layout) {
  std::string name;
  const auto add = [&](const char* axis, int size) {
    if (size > 1)
      name += (name.empty() ? "" : " x ") + std::string(axis) + " " + std::to_string(size);
  };
  add("data", layout.data);
  add("tensor", layout.tensor);
  add("pipeline", layout.pipeline);
  if (layout.pipeline > 1 && layout.kind != std::string("1f1b"))
    name += std::string(" ") + layout.kind;
  if (layout.zero > 0) name += " ZeRO " + std::to_string(layout.zero);
  return name + (layout.config.empty() ? "" : " " + layout.later);
}

Layout sequence(int ranks) {
  return {1,
          ranks,
          1,
          "1f1b",
          0,
          "sequence",
          R"({"parallel": {"tensor": {"size": )" + std::to_string(ranks) +
              R"(, "mode": "sequence"}}})"};
}

Layout zero(int stage, int tensor, int pipeline) {
  return {2, tensor, pipeline, "1f1b", stage};
}

const std::vector<Layout>& ordinary_layouts() {
  static const std::vector<Layout> layouts{
      {1, 2},    {1, 3},  {1, 4},  {2, 1},  {1, 1, 2},     {1, 1, 2, "zero_bubble"},
      {2, 2, 2}, zero(1), zero(2), zero(3), zero(2, 2, 2), zero(3, 2, 2)};
  return layouts;
}

const std::vector<Exhibit>& exhibits() {
  static const std::vector<Exhibit> all = [] {
    std::vector<Exhibit> found;
    for (const auto& some : {losses(), norms(), cuts(), graphs(), attentions()}) {
      found.insert(found.end(), some.begin(), some.end());
    }
    return found;
  }();
  return all;
}

namespace {

using Case = std::tuple<const Exhibit*, Layout>;

std::vector<Case> cases() {
  std::vector<Case> found;
  for (const Exhibit& exhibit : exhibits()) {
    const auto& layouts = exhibit.layouts.empty() ? ordinary_layouts() : exhibit.layouts;
    for (const Layout& layout : layouts) found.emplace_back(&exhibit, layout);
    for (const Layout& layout : exhibit.later) found.emplace_back(&exhibit, layout);
  }
  return found;
}

class Gallery : public testing::TestWithParam<Case> {};

TEST_P(Gallery, EqualsOneDevice) {
  expect_right(*std::get<0>(GetParam()), std::get<1>(GetParam()));
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  const auto& [exhibit, layout] = info.param;
  std::string name = std::string(exhibit->id) + " " + name_of(layout);
  std::string kept;
  for (const char c : name) kept += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return kept;
}

/// The page promises what is tested: a row for each number, with all that is said of it here.
TEST(GalleryPage, HasARowForEachExhibit) {
  std::ifstream file(OSLO_SOURCE_DIR "/docs/gallery.md");
  std::map<std::string, std::string> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| G", 0) == 0) rows[line.substr(2, line.find(' ', 2) - 2)] = line;
  }
  for (int i = 1; i <= 27; ++i) EXPECT_TRUE(rows.count("G" + std::to_string(i))) << "G" << i;
  for (const Exhibit& exhibit : exhibits()) {
    const std::string id = exhibit.id, number = id.substr(0, id.find(' '));
    std::istringstream sources(exhibit.sources);
    for (std::string source; sources >> source;) {
      source.erase(std::remove(source.begin(), source.end(), ','), source.end());
      EXPECT_NE(rows[number].find(source), std::string::npos) << number << " lacks " << source;
    }
    for (const Layout& layout : exhibit.later) {
      const std::string feature = layout.later.substr(0, layout.later.find(' '));
      EXPECT_NE(rows[number].find(feature), std::string::npos)
          << number << " waits for " << feature;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Programs, Gallery, testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace gallery
