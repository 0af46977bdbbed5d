// How long ranks wait: what users may say, and that groups and errors have it.
#include "mpu/base/time_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>

#include "mpu/world/world.h"
#include "tests/support/error_of.h"

namespace oslo {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// OSLO_TIMEOUT while it is in scope.
class TimeoutVariable {
 public:
  explicit TimeoutVariable(const std::string& value) {
    ::setenv("OSLO_TIMEOUT", value.c_str(), /*overwrite=*/1);
  }
  ~TimeoutVariable() { ::unsetenv("OSLO_TIMEOUT"); }
};

TEST(TimeLimit, TheVariableIsReadStrictly) {
  EXPECT_EQ(timeout_from_environment(), 10min);
  for (const auto& [text, expected] :
       {std::pair("1", 1s), std::pair("90", 90s), std::pair("604800", 604800s)}) {
    const TimeoutVariable variable(text);
    EXPECT_EQ(timeout_from_environment(), expected);
  }
  const TimeoutVariable empty("");
  EXPECT_EQ(timeout_from_environment(), 10min);
  for (const std::string wrong : {"0", "-5", "10m", "1e3", " 7", "7 ", "+7", "604801", "nan",
                                  "0x10", "99999999999999999999"}) {
    const TimeoutVariable variable(wrong);
    EXPECT_THAT(error_of([] { timeout_from_environment(); }),
                AllOf(HasSubstr("OSLO_TIMEOUT is '" + wrong + "'"), HasSubstr("1 to 604800")));
  }
}

TEST(TimeLimit, AbsurdOnesOfAWorldAreRefused) {
  const World world = World::alone();
  EXPECT_EQ(world.timeout(), 10min);
  world.set_timeout(90s);
  EXPECT_EQ(World(world).timeout(), 90s);  // copies are the same membership
  for (const std::chrono::milliseconds wrong : {0ms, -1ms, std::chrono::milliseconds(8 * 24h)}) {
    EXPECT_THAT(error_of([&] { world.set_timeout(wrong); }),
                AllOf(HasSubstr("the time limit is "), HasSubstr("(a week)")));
  }
  EXPECT_EQ(world.timeout(), 90s);
}

TEST(TimeLimit, IsNamedByWhoeverWaitedForTheWorld) {
  const std::string error = error_of([] {
    run_as_threads(2, [](World world) {
      world.barrier();
      world.set_timeout(50ms);
      if (world.rank() == 0) world.exchange("the weather", "fine");
    });
  });
  EXPECT_THAT(error, AllOf(HasSubstr("rank 0 waited for rank 1 (the weather) for up to 50 ms"),
                           HasSubstr("OSLO_TIMEOUT")));
}

}  // namespace
}  // namespace oslo
