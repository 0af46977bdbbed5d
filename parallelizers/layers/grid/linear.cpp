#include "parallelizers/layers/grid/linear.h"

#include <ATen/ATen.h>
#include <torch/serialize/archive.h>

#include <string>

#include "mpu/base/error.h"
#include "parallelizers/layers/layer.h"
#include "parallelizers/modules/module_tree.h"

namespace oslo::nn {
namespace {

constexpr AxisUse kScattersFeatures{.result = AxisUse::Result::scatter, .dim = -1};

/// weight (out, in), bias (out).
struct LinearCuts {
  GridCuts weight, bias;
  GridRoles roles;
};

const LinearCuts kLayer{
    {.flat = {{"row", 1}, {"column", 0}},
     .deep = {{"row", 1}, {"column", 0}},
     .cube = {{"output", 1}, {"input", 1}, {"weight", 0}}},
    {.flat = {{"column", 0}, {"row", 0}}, .deep = {{"column", 0}}, .cube = {{"weight", 0}}},
    {.flat = {{"row", kTakesBatch}},
     .deep = {{"depth", kTakesBatch}, {"row", kTakesBatch}},
     .cube = {{"input", kTakesBatch}, {"output", kScattersBatch}}}};

/// What is left of the batch in 3D is taken of the result: there it lies inside that of "input".
const LinearCuts kClassifier{{.flat = {{"column", 1}, {"row", 1}},
                              .deep = {{"column", 1}, {"row", 1}},
                              .cube = {{"output", 1}}},
                             {},
                             {.flat = {{"row", kTakesBatch}},
                              .deep = {{"depth", kTakesBatch}, {"row", kTakesBatch}},
                              .cube = {{"input", kTakesBatch}, {"weight", kSplitsBatch}}}};

/// x W^T with W cut as x is: W comes to x over rows, and what columns give is added up.
const LinearCuts kVocabClassifier{
    {.flat = {{"row", 0}, {"column", 1}},
     .deep = {{"row", 0}, {"column", 1}},
     .cube = {{"weight", 0}, {"input", 0}, {"output", 1}}},
    kLayer.bias,
    {.flat = {{"row", kTakesBatchBringsWeight}, {"column", kScattersFeatures}},
     .deep = {{"depth", kTakesBatch},
              {"row", kTakesBatchBringsWeight},
              {"column", kScattersFeatures}},
     .cube = {{"input", kTakesBatchBringsWeight}, {"output", kScattersBatch}}}};

const LinearCuts& table_of(LinearRole role) {
  switch (role) {
    case LinearRole::layer:
      return kLayer;
    case LinearRole::classifier:
      return kClassifier;
    case LinearRole::vocab_classifier:
      break;
  }
  return kVocabClassifier;
}

const char* kind_of(LinearRole role) {
  switch (role) {
    case LinearRole::layer:
      return "Linear";
    case LinearRole::classifier:
      return "Classifier";
    case LinearRole::vocab_classifier:
      break;
  }
  return "VocabParallelClassifier";
}

const torch::nn::LinearOptions& checked(const LinearOptions& options, LinearRole role) {
  OSLO_CHECK(options.in_features() > 0 && options.out_features() > 0, "a ", kind_of(role),
             " on a grid of ", options.in_features(), " x ", options.out_features(),
             " features; both must be positive");
  OSLO_CHECK(options.parallel() == "data" && options.axis() == "tensor" &&
                 !options.gather_output() && !options.input_is_parallel() && !options.layer_idx(),
             "parallel, axis, gather_output, input_is_parallel and layer_idx are for "
             "oslo::nn::Linear; a ",
             kind_of(role), " on a grid is cut by its class");
  return options;
}

}  // namespace

GridLinearImpl::GridLinearImpl(Grid grid, LinearRole role, const LinearOptions& options,
                               const MPU& mpu, CubeSide side)
    : torch::nn::LinearImpl(checked(options, role)),
      role_(role),
      mode_(grid, mpu, side, kind_of(role)),
      keep_gathered_(options.keep_gathered() || grid == Grid::cube) {
  cut();
}

void GridLinearImpl::cut() {
  const LinearCuts& table = table_of(role_);
  mode_.cut(weight, "weight", table.weight, UseKind::product, table.roles, !keep_gathered_);
  mode_.cut(bias, "bias", table.bias);
}

void GridLinearImpl::reset() {
  torch::nn::LinearImpl::reset();
  cut();
}

void GridLinearImpl::reset_parameters() {
  const torch::nn::LinearImpl drawn(options);
  assign_part(weight, drawn.weight);
  assign_part(bias, drawn.bias);
}

void GridLinearImpl::own_copies(const std::optional<at::Device>& device) {
  own_parameters(*this, device);
  const auto& parameters = registered_parameters(*this);
  weight = parameters["weight"];
  if (bias.defined()) bias = parameters["bias"];
}

void GridLinearImpl::save(torch::serialize::OutputArchive& archive) const {
  save_layer(*this, archive);
}

void GridLinearImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << class_name(*this) << "(in_features=" << options.in_features()
         << ", out_features=" << options.out_features() << ", bias=" << bias.defined()
         << ", grid=" << mode_.to_string() << ", local_weight=" << weight.sizes() << ")";
}

}  // namespace oslo::nn
