// What carries a group's CUDA tensors, by what its members say of themselves.
#include <gmock/gmock.h>

#include "mpu/transport/group_members.h"
#include "tests/support/error_of.h"

namespace oslo {
namespace {

using testing::ElementsAre;

/// Members that want `wanted`, each on a host and a GPU.
std::vector<GroupMember> members(Transport wanted,
                                 const std::vector<std::pair<const char*, const char*>>& places) {
  std::vector<GroupMember> all;
  for (const auto& [host, device] : places) all.push_back({wanted, host, device});
  return all;
}

/// Met in a group of the world's ranks 4, 5, ...
MembersMet met_by(const std::vector<GroupMember>& members) {
  std::vector<int> ranks;
  for (size_t i = 0; i < members.size(); ++i) ranks.push_back(4 + static_cast<int>(i));
  return what_was_met("g", members, ranks);
}

DeviceCarrier carrier(const std::vector<std::pair<const char*, const char*>>& places) {
  return met_by(members(Transport::automatic, places)).device;
}

TEST(Carriers, NcclWhereEachHasAGpu) {
  EXPECT_EQ(carrier({{"a", "A"}}), DeviceCarrier::nccl);
  EXPECT_EQ(carrier({{"a", "A"}, {"a", "B"}}), DeviceCarrier::nccl);
  EXPECT_EQ(carrier({{"a", "A"}, {"b", "B"}, {"a", "C"}}), DeviceCarrier::nccl);
}

TEST(Carriers, TheHostsMemoryWhereSomeShareOne) {
  EXPECT_EQ(carrier({{"a", "A"}, {"a", "A"}}), DeviceCarrier::staged);
  EXPECT_EQ(carrier({{"a", "A"}, {"a", "B"}, {"a", "A"}}), DeviceCarrier::staged);
}

TEST(Carriers, NothingWhereSomeHaveNoneOrShareOneAcrossHosts) {
  EXPECT_EQ(carrier({{"a", ""}}), DeviceCarrier::nothing);
  EXPECT_EQ(carrier({{"a", "A"}, {"a", ""}}), DeviceCarrier::nothing);
  // Containers that do not see each other's memory, and the same GPU.
  EXPECT_EQ(carrier({{"a", "A"}, {"b", "A"}}), DeviceCarrier::nothing);
  EXPECT_EQ(carrier({{"a", "A"}, {"a", "A"}, {"b", "B"}}), DeviceCarrier::nothing);
}

TEST(Carriers, NcclThatIsAskedForAndCannotBeIsAnError) {
  const auto refused = [](const std::vector<std::pair<const char*, const char*>>& places) {
    return test::error_of([&] { met_by(members(Transport::nccl, places)); });
  };
  test::expect_contains(refused({{"a", "A"}, {"a", ""}, {"a", ""}}), {"ranks 5 6 have no CUDA"});
  test::expect_contains(refused({{"a", "A"}, {"a", "A"}, {"a", "B"}}),
                        {"the 3 ranks of group g are on 2 GPUs", "'auto'"});
  EXPECT_EQ(met_by(members(Transport::nccl, {{"a", "A"}, {"b", "B"}})).device, DeviceCarrier::nccl);
}

TEST(Carriers, TravelAsText) {
  const GroupMember member =
      GroupMember::from_text(GroupMember{Transport::gloo, "host name 1", "1.2.3"}.to_text());
  EXPECT_EQ(member.wanted, Transport::gloo);
  EXPECT_EQ(member.host, "host name 1");
  EXPECT_EQ(member.device, "1.2.3");
  EXPECT_EQ(GroupMember::from_text(GroupMember{}.to_text()).device, "");
  const MembersMet met = MembersMet::from_text(
      met_by(members(Transport::automatic, {{"x", "A"}, {"y", "B"}, {"x", "C"}})).to_text(), 3);
  EXPECT_THAT(met.host_of, ElementsAre(0, 1, 0));
  EXPECT_EQ(met.device, DeviceCarrier::nccl);
}

}  // namespace
}  // namespace oslo
