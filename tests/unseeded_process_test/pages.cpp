// Every C++ block of README.md, docs/ and tutorials/README.md, compiled and run as it is printed,
// on ranks that are processes and that nobody seeded. scaffolds.cpp.in says what stands around
// them.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <set>

#include "documented_programs.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tool_process.h"

namespace oslo::test {
namespace {

/// A rank of the jobs below: what needs so many ranks, one after the other, each in a folder of its
/// own and with a generator as a process has it at its start.
TEST(Child, OfPages) {
  const char* folder = std::getenv("OSLO_TEST_FOLDER");
  if (folder == nullptr) GTEST_SKIP() << "no rank of a job";
  const World world = World::from_environment();
  for (const documented::Program& program : documented::kPrograms) {
    if (program.ranks != world.size()) continue;
    const std::filesystem::path own = std::filesystem::path(folder) / program.name;
    std::filesystem::create_directories(own);
    std::filesystem::current_path(own);
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    generator.seed();
    std::string error;
    try {
      program.run();
      world.barrier();
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    std::cout << (error.empty() ? "ran " : "failed ") << program.name << " " << error << std::endl;
    if (!error.empty()) break;  // the others have parted from this rank
  }
}

TEST(Documents, ProgramsRunAsTheyArePrinted) {
  std::map<int, std::set<std::string>> names;
  for (const documented::Program& program : documented::kPrograms)
    names[program.ranks].insert(program.name);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  for (const auto& [ranks, programs] : names) {
    const TemporaryDirectory folder;
    setenv("OSLO_TEST_FOLDER", folder.path().c_str(), 1);
    ToolProcess tool(
        {"run", "-n", std::to_string(ranks), "--", self, "--gtest_filter=Child.OfPages"});
    EXPECT_EQ(tool.finish(), 0) << tool.error();
    unsetenv("OSLO_TEST_FOLDER");
    std::multiset<std::string> ran, expected;
    for (const std::string& line : lines_of(tool.output())) {
      if (line.find("] ran ") != std::string::npos) ran.insert(line);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      for (const std::string& name : programs) {
        expected.insert("[rank " + std::to_string(rank) + "] ran " + name + " ");
      }
    }
    EXPECT_EQ(ran, expected) << tool.output() << tool.error();
  }
}

}  // namespace
}  // namespace oslo::test
