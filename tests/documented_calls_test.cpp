// What oslo_cpp/oslo.h declares for a model takes it as programs have it: in a holder
// (TORCH_MODULE), as a shared pointer, and, where that is enough, as a reference. Every such
// declaration is named here: the headers are read.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace {

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& a, const torch::Tensor& b) { return layer(a + b); }
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(3, 2))};
};
TORCH_MODULE(Net);

using Pointer = std::shared_ptr<NetImpl>;
using Base = std::shared_ptr<torch::nn::Module>;

/// Whether a call compiles with the model in each of its forms.
#define TAKES(Model, ...)                                                                   \
  (requires(const Model& model, const oslo::MPU& mpu, const oslo::ParallelModel& parallel,  \
            const torch::Tensor& a, const std::string& path, oslo::StageAssignment& stages, \
            oslo::SaveMemory& memory) { __VA_ARGS__; })
#define TAKES_POINTERS(...)                   \
  static_assert(TAKES(Net, __VA_ARGS__));     \
  static_assert(TAKES(Pointer, __VA_ARGS__)); \
  static_assert(TAKES(Base, __VA_ARGS__))
#define TAKES_ALL(...)         \
  TAKES_POINTERS(__VA_ARGS__); \
  static_assert(TAKES(NetImpl, __VA_ARGS__))

TAKES_ALL(oslo::load_state(model, path));
TAKES_ALL(oslo::save_parallelized(model, mpu, path));
TAKES_ALL(oslo::save_async(model, mpu, path, oslo::SaveOptions(), memory));
TAKES_ALL(oslo::load_parallelized(model, mpu, path));
TAKES_ALL(oslo::save_pretrained(model, path));
TAKES_ALL(oslo::save_pretrained(model, mpu, path));
TAKES_ALL(oslo::load_pretrained(model, path));
TAKES_ALL(oslo::load_pretrained(model, mpu, path));
TAKES_POINTERS(oslo::initialize(model));
TAKES_POINTERS(oslo::materialize(model));
TAKES_POINTERS(oslo::GradScaler(model));
TAKES_POINTERS(stages.set_layer_idx(model, 0));
TAKES_POINTERS(stages.set_pipeline_stage_id(model, 0));
static_assert(TAKES(Net, oslo::verify(parallel, model, a)));
static_assert(TAKES(Net, oslo::verify(parallel, model, {a, a})));
static_assert(TAKES(Net, oslo::verify(parallel, model, std::vector<torch::Tensor>{a, a})));
static_assert(TAKES(Pointer, oslo::verify(parallel, model, a)));
static_assert(TAKES(Pointer, oslo::verify(parallel, model, {a, a})));
static_assert(TAKES(Pointer, oslo::verify(parallel, model, {a, a}, oslo::VerifyOptions())));
static_assert(TAKES(Net, oslo::DistributedDataParallel<Net>(model, mpu.get_data_parallel_group())));
static_assert(requires(const std::string& text) { oslo::pipeline::parse_schedule(text); });

const std::set<std::string> kTried{
    "GradScaler",        "load_state",      "save_parallelized",     "save_async",
    "load_parallelized", "save_pretrained", "load_pretrained",       "initialize",
    "materialize",       "set_layer_idx",   "set_pipeline_stage_id", "verify"};

std::string read(const std::string& header) {
  std::ostringstream text;
  text << std::ifstream(std::string(OSLO_SOURCE_DIR) + "/" + header).rdbuf();
  return text.str();
}

/// Names of functions in the headers that oslo.h and pretrained.h list whose parameters are a model
/// in one of its forms.
std::set<std::string> declared() {
  static const std::regex include("#include \"([^\"]+)\"");
  static const std::regex function(
      "\\b(\\w+)\\((?:const oslo::ParallelModel& \\w+, |const ParallelModel& \\w+,\\s+)?"
      "(?:const ModelView& |(?:const )?std::shared_ptr<(?:Impl|torch::nn::Module)>&? |"
      "const torch::nn::ModuleHolder<Impl>& )");
  std::set<std::string> names;
  for (const char* all : {"oslo_cpp/oslo.h", "oslo_cpp/pretrained.h"}) {
    const std::string list = read(all);
    for (std::sregex_iterator at(list.begin(), list.end(), include), end; at != end; ++at) {
      const std::string text = read((*at)[1]);
      for (std::sregex_iterator found(text.begin(), text.end(), function); found != end; ++found) {
        names.insert((*found)[1]);
      }
    }
  }
  // Documented functions are written with these.
  for (const char* inner : {"verify_modules", "initialize_for_engine", "ParallelModel"}) {
    names.erase(inner);
  }
  return names;
}

TEST(DocumentedCalls, EveryDeclarationForAModelIsTried) {
  const std::set<std::string> names = declared();
  EXPECT_GE(names.size(), 8u);
  for (const std::string& name : names) EXPECT_EQ(kTried.count(name), 1u) << name;
}

}  // namespace
