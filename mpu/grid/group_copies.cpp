#include "mpu/grid/group_copies.h"

#include <utility>

#include "mpu/base/error.h"
#include "mpu/transport/counted_process_group.h"

namespace oslo {

void set_copies(Group& group, std::shared_ptr<Group> copies) {
  auto* const counted = dynamic_cast<CountedProcessGroup*>(group.process_group().get());
  OSLO_CHECK(counted != nullptr, "group ", group.name(), " cannot have copies");
  counted->set_copies(std::move(copies));
}

std::shared_ptr<Group> copies_of(const Group& group) {
  const auto* const counted = dynamic_cast<const CountedProcessGroup*>(group.process_group().get());
  return counted == nullptr ? nullptr : counted->copies();
}

}  // namespace oslo
