#include "tests/programs_test/training_program.h"

#include <map>
#include <string>

namespace programs {
namespace {

/// What a program does that cannot be done with parts of weights over data ranks; empty where
/// nothing.
std::string refused_with_parts(const std::string& program) {
  static const std::map<std::string, std::string> refused{
      {"glow_by_set_data", "set_data of parallel parameter"},
      {"gradient_averaging", "gradients are averages over them already"},
      {"penalty_at_a_weight", "create_graph over weights that data replicas keep parts of"}};
  const auto found = refused.find(program);
  return found == refused.end() ? "" : found->second;
}

}  // namespace

TEST_P(TrainingProgram, EqualsOneDevice) {
  const auto& [program, mesh] = GetParam();
  const training::Notes expected = training::on_one_device(program.run, mesh);
  ASSERT_FALSE(expected.empty());
  oslo::run_as_threads(mesh.size(), [&, &program = program, &mesh = mesh](oslo::World world) {
    at::set_num_threads(1);
    Device device(mesh, world);
    const std::string refused = mesh.zero == 3 ? refused_with_parts(program.name) : "";
    if (!refused.empty()) {
      EXPECT_THAT(oslo::test::error_of([&] { program.run(device); }), testing::HasSubstr(refused));
      return;
    }
    program.run(device);
    EXPECT_EQ(training::difference(device.notes(), expected, mesh, device.data_rank()), "");
  });
}

}  // namespace programs
