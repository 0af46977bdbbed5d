#include "parallelizers/pipeline/point_to_point.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

namespace oslo {

c10::intrusive_ptr<c10d::Work> start_send(Group& group, const at::Tensor& tensor, int to, int tag) {
  std::vector<at::Tensor> message{tensor};
  return group.process_group()->send(message, to, tag);
}

void receive(Group& group, at::Tensor& tensor, int from, int tag) {
  std::vector<at::Tensor> message{tensor};
  group.process_group()->recv(message, from, tag)->wait();
}

}  // namespace oslo
