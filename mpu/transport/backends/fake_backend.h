#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace oslo {

/// A backend that moves nothing: what a dry run of any mesh on one rank communicates over.
/// (LibTorch has one too, but its header asks for Python's.)
class FakeBackend final : public c10d::Backend {
 public:
  using c10d::Backend::Backend;

  const std::string getBackendName() const override { return "fake"; }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>&,
                                           const c10d::BroadcastOptions&) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&,
                                           const c10d::AllreduceOptions&) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions&) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override;
};

}  // namespace oslo
