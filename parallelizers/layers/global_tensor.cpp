#include "parallelizers/layers/global_tensor.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "mpu/base/error.h"

namespace oslo {
namespace {

void check_ranks(const World& world, const std::vector<int>& ranks) {
  OSLO_CHECK(!ranks.empty(), "a placement of no ranks");
  const std::string which = "a placement over ranks " + c10::Join(" ", ranks);
  for (const int rank : ranks) {
    OSLO_CHECK(rank >= 0 && rank < world.size(), which, ": rank ", rank, " is none of the world's ",
               world.size());
    OSLO_CHECK(std::ranges::count(ranks, rank) == 1, which, ": rank ", rank, " stands twice");
  }
  OSLO_CHECK(std::ranges::find(ranks, world.rank()) != ranks.end(), which,
             " was asked for on rank ", world.rank(),
             ", which has none of its tensors; make it, and compute with it, on its ranks alone");
}

}  // namespace

MeshPtr placement(const World& world, const std::vector<int>& ranks) {
  check_ranks(world, ranks);
  return std::make_shared<Mesh>(std::vector{world.make_group("placement", ranks)});
}

MeshPtr placement(const World& world, const std::vector<std::vector<int>>& ranks) {
  OSLO_CHECK(!ranks.empty(), "a placement of no ranks");
  std::vector<int> all;
  for (const std::vector<int>& row : ranks) {
    OSLO_CHECK(row.size() == ranks.front().size(), "a placement of rows of ", row.size(), " and ",
               ranks.front().size(), " ranks; give each as many");
    all.insert(all.end(), row.begin(), row.end());
  }
  check_ranks(world, all);
  const size_t columns = ranks.front().size();
  const size_t here = std::ranges::find(all, world.rank()) - all.begin();
  std::vector<int> column;
  for (const std::vector<int>& row : ranks) column.push_back(row[here % columns]);
  auto outer = world.make_group("placement", std::move(column));
  auto inner = world.make_group("placement", ranks[here / columns]);
  return std::make_shared<Mesh>(std::vector{std::move(outer), std::move(inner)});
}

}  // namespace oslo
