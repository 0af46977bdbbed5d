#include "tests/programs_test/training_program.h"

namespace programs {

TEST_P(TrainingProgram, EqualsOneDevice) {
  const auto& [program, mesh] = GetParam();
  const training::Notes expected = training::on_one_device(program.run, mesh);
  ASSERT_FALSE(expected.empty());
  oslo::run_as_threads(mesh.size(), [&, &program = program, &mesh = mesh](oslo::World world) {
    at::set_num_threads(1);
    Device device(mesh, world);
    program.run(device);
    EXPECT_EQ(training::difference(device.notes(), expected, mesh, device.data_rank()), "");
  });
}

}  // namespace programs
