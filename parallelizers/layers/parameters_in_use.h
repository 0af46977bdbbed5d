#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace oslo {

/// `lm_head->weight = wte->weight` changes the typed member alone, which forward reads. The tensor
/// that the layer was made with stays registered: `parameters()` lists it, it never gets a
/// gradient, and optimizers pass over it. Registrations are the author's and stay as they are,
/// since an optimizer steps, and a norm counts, what `parameters()` lists, duplicates included.
/// Whoever asks what a model computes with asks here.

/// Where a layer of LibTorch keeps what it registered as `name`; null for other modules and names.
at::Tensor* parameter_member(torch::nn::Module& module, const std::string& name);

/// What `module` computes with under the name of its parameter `registered`: the member, unless
/// forward computed that (a product, a view), else what is registered.
at::Tensor parameter_in_use(const torch::nn::Module& module, const std::string& name,
                            const at::Tensor& registered);

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  /// Nothing uses it: forward computes what it computes with from other parameters.
  bool computed = false;
};

/// The distinct parameters that `module` computes with, in its order, each under its first name.
std::vector<NamedTensor> parameters_in_use(const torch::nn::Module& module);

/// Remembers of a registered parameter that forward was seen to compute what stands in its place;
/// operators do not see it.
void set_computed(const at::Tensor& registered);
bool is_computed(const at::Tensor& registered);

/// Puts the members of LibTorch's layers back to what they are now, at the end of its life: a
/// forward may assign what it computed (weight norm).
class MemberKeeper {
 public:
  explicit MemberKeeper(torch::nn::Module& root);
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
  void keep(torch::nn::Module& module);

  struct Member {
    const torch::nn::Module* module;
    std::string name;
    at::Tensor* place;
    at::Tensor value;
  };
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;  ///< but for the root, kept alive
  std::vector<Member> members_;
  std::vector<at::Tensor> parameters_;
  std::vector<Computed> computed_;
};

}  // namespace oslo
