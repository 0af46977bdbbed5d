#pragma once

#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/seeded.h"

// A training program is one text, run once on plain LibTorch, which never sees `initialize`, and
// once on cut models. It notes what it computes; the notes are compared.
namespace training {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

/// Programs are in fp64, models and constants alike, so that only the order of sums differs. Set
/// before any thread starts.
inline const bool kFloat64 = [] {
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  return true;
}();

struct Mesh {
  int tensor = 1, data = 1;
  int zero = 0;  ///< the stage of ZeRO, over the data ranks
  int size() const { return tensor * data; }
  std::string name() const {
    return (data > 1 ? "dp" + std::to_string(data) : "") + "tp" + std::to_string(tensor) +
           (zero > 0 ? "zero" + std::to_string(zero) : "");
  }
};

/// Numbers in [-1, 1] that depend on sizes and `start` only.
inline Tensor numbers(at::IntArrayRef sizes, double start) {
  const int64_t count = c10::multiply_integers(sizes);
  return torch::sin(torch::arange(count, torch::kDouble) * 1.3 + start).view(sizes);
}

/// Integers below `bound`, as `numbers`.
inline Tensor classes(at::IntArrayRef sizes, int64_t bound, int64_t start) {
  const int64_t count = c10::multiply_integers(sizes);
  const Tensor i = torch::arange(count);
  // Quadratic, so that no bound makes them all the same.
  return (i * i * 3 + i * 4 + start * 5).remainder(bound).view(sizes);
}

struct Note {
  std::string what;
  Tensor value;       ///< undefined: there was none
  bool rows = false;  ///< dimension 0 is the batch: a data rank has its own rows only
};
using Notes = std::vector<Note>;

/// Where a program runs. Nothing in it differs on one device but what it asks of this.
class Device {
 public:
  /// One device, plain LibTorch, for a program that others run on `mesh`.
  explicit Device(const Mesh& mesh) : mesh_(mesh) {}
  Device(const Mesh& mesh, oslo::World world) : mesh_(mesh), world_(std::move(world)) {}

  bool is_parallel() const { return world_.defined(); }
  const Mesh& mesh() const { return mesh_; }
  const oslo::World& world() const { return world_; }

  /// A model of seed `seed`: the same wherever it is made.
  template <typename Make>
  static auto make(uint64_t seed, const Make& make) {
    return oslo::test::make_seeded(seed, make);
  }

  /// Nothing on one device. `more`: further keys of the config, each behind a comma.
  template <typename Model>
  std::shared_ptr<oslo::ParallelModel> initialize(
      const Model& model, const std::function<void()>& example = {},
      const std::function<void(oslo::InitializeOptions&)>& tweak = {},
      const std::string& more = "") {
    if (!is_parallel()) return nullptr;
    oslo::InitializeOptions how;
    how.world = world_;
    how.example_inputs = example;
    if (tweak) tweak(how);
    const std::string config =
        R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )" +
        std::to_string(mesh_.tensor) + "}" +
        (mesh_.zero == 0 ? ""
                         : R"(, "zero_optimization": {"enabled": true, "stage": )" +
                               std::to_string(mesh_.zero) + "}") +
        more + "}";
    auto parallel = std::make_shared<oslo::ParallelModel>(
        oslo::initialize(model, oslo::Config::parse(config), how));
    if (!mpu_) mpu_.emplace(parallel->mpu());
    return parallel;
  }

  /// Of the first model that was initialized.
  const oslo::MPU& mpu() const { return mpu_.value(); }
  int data_rank() const { return is_parallel() ? world_.rank() / mesh_.tensor : 0; }

  /// Whether a program without a wrapper has gradients to average over data ranks.
  bool averages_by_hand() const { return is_parallel() && mesh_.data > 1 && mesh_.zero < 3; }

  /// The rows of a batch that are this data rank's.
  Tensor part(const Tensor& batch) const {
    return is_parallel() ? batch.tensor_split(mesh_.data, 0)[data_rank()] : batch;
  }

  void note(const std::string& what, const Tensor& value) { add(what, value, false); }
  void note(const std::string& what, double value) { add(what, torch::tensor(value), false); }
  /// What belongs to `part` of a batch.
  void note_rows(const std::string& what, const Tensor& value) { add(what, value, true); }
  /// A mean over this data rank's rows.
  void note_mean(const std::string& what, const Tensor& value) {
    Tensor whole = oslo::full_tensor(value).detach().clone();
    if (is_parallel() && mesh_.data > 1) {
      whole = mpu().data_group()->all_reduce(whole) / mesh_.data;
    }
    add(what, whole, false);
  }

  void note_gradients(const std::string& name, const torch::nn::Module& model) {
    for (const auto& item : in_use(model)) {
      note(name + "." + item.first + ".grad", item.second.grad());
    }
  }
  void note_state(const std::string& name, const torch::nn::Module& model) {
    for (const auto& item : in_use(model)) note(name + "." + item.first, item.second);
    for (const auto& item : model.named_buffers()) note(name + "." + item.key(), item.value());
  }
  void note_model(const std::string& name, const torch::nn::Module& model) {
    note_gradients(name, model);
    note_state(name, model);
  }

  /// `head->weight = wte->weight` leaves the tensor that `head` registered behind, and nothing uses
  /// it. `initialize` is free to do with it what it likes: names given here are not looked at.
  void leave_out(const std::string& parameter) { left_out_.push_back(parameter); }

  const Notes& notes() const { return notes_; }

 private:
  std::vector<std::pair<std::string, Tensor>> in_use(const torch::nn::Module& model) const {
    std::vector<std::pair<std::string, Tensor>> used;
    for (const auto& item : model.named_parameters()) {
      if (std::find(left_out_.begin(), left_out_.end(), item.key()) == left_out_.end()) {
        used.emplace_back(item.key(), item.value());
      }
    }
    return used;
  }
  void add(const std::string& what, const Tensor& value, bool rows) {
    const torch::NoGradGuard no_grad;
    notes_.push_back(
        {what, value.defined() ? oslo::full_tensor(value).detach().clone() : Tensor(), rows});
  }

  Mesh mesh_;
  oslo::World world_;
  std::optional<oslo::MPU> mpu_;
  Notes notes_;
  std::vector<std::string> left_out_;
};

/// A model under data parallelism, as its user calls it; the model itself on one device.
template <typename Model>
class Replica {
 public:
  Replica(const Device& device, Model model, const oslo::DDPOptions& options = {})
      : model_(std::move(model)) {
    if (!device.is_parallel()) return;
    ddp_ = std::make_unique<oslo::DistributedDataParallel<Model>>(
        model_, device.mpu().get_data_parallel_group(), options);
  }
  template <typename... Args>
  auto forward(Args&&... args) {
    return ddp_ ? ddp_->forward(std::forward<Args>(args)...)
                : model_->forward(std::forward<Args>(args)...);
  }
  std::unique_ptr<oslo::NoSyncGuard> no_sync() {
    if (!ddp_) return nullptr;
    return std::unique_ptr<oslo::NoSyncGuard>(new oslo::NoSyncGuard(ddp_->no_sync()));
  }

 private:
  Model model_;
  std::unique_ptr<oslo::DistributedDataParallel<Model>> ddp_;
};

/// Rounding through the root of a second moment (eps 1e-8, steps of 1e-2): 1e-15 becomes 1e-9.
struct Tolerance {
  double relative = 1e-7, absolute = 1e-8;
};

/// The first difference; empty where there is none.
inline std::string difference(const Notes& mine, const Notes& expected, const Mesh& mesh,
                              int data_rank, const Tolerance& tolerance = {}) {
  for (size_t i = 0; i < std::min(mine.size(), expected.size()); ++i) {
    const Note &a = mine[i], &b = expected[i];
    if (a.what != b.what) return "note " + a.what + " where one device notes " + b.what;
    if (!a.value.defined() && !b.value.defined()) continue;
    // Data parallelism's gradient of what nobody used is zero.
    const Tensor actual = a.value.defined() ? a.value : torch::zeros_like(b.value);
    Tensor wanted = b.value.defined() ? b.value : torch::zeros_like(a.value);
    if (b.rows) wanted = wanted.tensor_split(mesh.data, 0)[data_rank];
    if (actual.sizes() != wanted.sizes()) {
      return c10::str(a.what, " has shape ", actual.sizes(), ", on one device ", wanted.sizes());
    }
    if (actual.scalar_type() != wanted.scalar_type()) {
      return c10::str(a.what, " is ", actual.scalar_type(), ", on one device ",
                      wanted.scalar_type());
    }
    if (!torch::allclose(actual, wanted, tolerance.relative, tolerance.absolute,
                         /*equal_nan=*/true)) {
      return c10::str(a.what, " differs by ",
                      (actual - wanted).to(torch::kDouble).abs().max().item<double>(), " of ",
                      wanted.to(torch::kDouble).abs().max().item<double>(),
                      a.value.defined() ? "" : " (there is none)",
                      b.value.defined() ? "" : " (one device has none)");
    }
  }
  if (mine.size() != expected.size()) {
    return c10::str(mine.size(), " notes, on one device ", expected.size());
  }
  return "";
}

using Program = std::function<void(Device&)>;

inline Notes on_one_device(const Program& program, const Mesh& mesh) {
  Device device(mesh);
  program(device);
  return device.notes();
}

}  // namespace training
