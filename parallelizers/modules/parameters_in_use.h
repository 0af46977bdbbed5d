#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "parallelizers/modules/model_view.h"

namespace oslo {

/// Where a layer of LibTorch keeps what it registered as `name`, and where a module of another
/// language keeps a parameter that is registered elsewhere; null for other modules and names.
at::Tensor* parameter_member(torch::nn::Module& module, const std::string& name);

/// The distinct parameters that `model` computes with, in its order, each under its first name.
std::vector<NamedTensor> parameters_in_use(const ModelView& model);

/// Puts the members of LibTorch's layers back to what they are now, at the end of its life: a
/// forward may assign what it computed (weight norm).
class MemberKeeper {
 public:
  explicit MemberKeeper(const ModelView& model);
  ~MemberKeeper() { restore(); }
  MemberKeeper(const MemberKeeper&) = delete;
  MemberKeeper& operator=(const MemberKeeper&) = delete;

  /// Adds what was assigned since, and is no parameter of the model, to `computed`.
  void restore();

  /// A layer's member that forward assigned something computed to.
  struct Computed {
    const torch::nn::Module* module;
    std::string name;
    bool operator==(const Computed&) const = default;
  };
  const std::vector<Computed>& computed() const { return computed_; }

 private:
  struct Member {
    std::shared_ptr<torch::nn::Module> module;  ///< kept alive, but for a root given by reference
    std::string name;
    at::Tensor* place;
    at::Tensor value;
  };
  std::vector<Member> members_;
  std::vector<at::Tensor> parameters_;
  std::vector<Computed> computed_;
};

}  // namespace oslo
