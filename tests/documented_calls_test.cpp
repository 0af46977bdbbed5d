// What oslo_cpp/oslo.h declares for a model takes it as programs have it: in a holder
// (TORCH_MODULE), as a shared pointer, and, where that is enough, as a reference. Every function
// that its headers declare is called here: the headers are read.
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

Base pointer_to(const Net& model) {
  return model.ptr();
}
template <typename M>
Base pointer_to(const std::shared_ptr<M>& model) {
  return model;
}

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

// Templates that return `auto` are compiled to their end by this.
template <typename Model>
constexpr bool trains_in_an_engine = requires(const Model& model,
                                              torch::optim::Optimizer& optimizer,
                                              torch::nn::CrossEntropyLoss criterion,
                                              std::vector<torch::data::Example<>>& loader) {
  oslo::initialize(model, optimizer, criterion, loader);
  oslo::initialize(model, optimizer, criterion, loader, oslo::Config());
};
static_assert(trains_in_an_engine<Net> && trains_in_an_engine<Pointer>);
TAKES_POINTERS(oslo::LibraryModel{std::shared_ptr<torch::nn::Module>(pointer_to(model)), {}});
static_assert(TAKES(Net, oslo::checkpoint(model, a, a)));
static_assert(TAKES(Net, oslo::checkpoint(oslo::CheckpointOptions(), model, a, a)));
static_assert(TAKES(Pointer, oslo::checkpoint(model, a, a)));
static_assert(TAKES(Pointer, oslo::DistributedDataParallel(model, mpu.get_data_parallel_group())));
static_assert(TAKES(Net, oslo::DistributedDataParallel(model, mpu.get_data_parallel_group(),
                                                       oslo::DDPOptions())));
template <typename Model>
constexpr bool counts_means = requires(const oslo::DistributedDataParallel<Model>& ddp,
                                       const torch::Tensor& a) {
  oslo::counted_mean(a, 3, ddp);
  oslo::counted_mean(a, 3, ddp, 7);
};
static_assert(counts_means<Net> && counts_means<Pointer>);

#define COMPILES(parameters, ...) static_assert(requires parameters { __VA_ARGS__; })
using torch::Tensor;
using Tensors = std::vector<Tensor>;

COMPILES((const oslo::PipelineSchedule& schedule, const Tensor& a),
         oslo::counted_mean(a, 3, schedule), oslo::counted_mean(a, 3, schedule, 7));
COMPILES((const oslo::ModelState& state, const oslo::CheckpointFolder& folder, Tensors values),
         oslo::read_state(state, folder), oslo::copy_into(state, values));
COMPILES((const oslo::Error& error), oslo::kind_of(error), oslo::fail("no ", 3),
         oslo::fail_as(oslo::ErrorKind::config, "no ", 3));
COMPILES((int& argc, char** argv, const oslo::World& world, c10::Device device),
         oslo::keep_freed_memory(), oslo::drop_local_rank(argc, argv), oslo::memory_held(device),
         oslo::local_device(world), oslo::local_device(world, "cpu"),
         oslo::share_out_devices(std::vector<oslo::SeenDevices>()));
COMPILES((const std::function<void(oslo::World)>& body), oslo::run_as_threads(2, body));
COMPILES((const std::string& path), oslo::load_exported(path), oslo::load_exported(path, path));
COMPILES((const std::function<oslo::LibraryModel()>& make, const char* const* words),
         oslo::plan_library_model(make, 1, words));
COMPILES((const torch::jit::Module& script), oslo::initialize(script));
COMPILES((const nlohmann::json& config, torch::nn::Sequential layers),
         oslo::build_pipeline_model_from_cfg(config), oslo::build_pipeline_model(layers),
         oslo::register_module_class<Net>("Net"), oslo::register_module_class<NetImpl>("Net"));
COMPILES((const Tensors& parameters), oslo::clip_grad_norm_(parameters, 1.0));
COMPILES((torch::nn::Embedding layer), oslo::nn::move_padding_to_mark(*layer));
COMPILES((const oslo::World& world), oslo::placement(world, {0, 1}),
         oslo::placement(world, {{0, 1}, {2, 3}}), oslo::placement(world, std::vector<int>{0, 1}));
COMPILES((const Tensor& a, const Tensors& list, Tensor (*function)(const Tensor&)),
         oslo::checkpoint(function, a), oslo::checkpoint(function, list),
         oslo::checkpoint(oslo::CheckpointOptions(), function, list));
COMPILES((const oslo::pipeline::Schedule& schedule), oslo::pipeline::to_text(schedule));
COMPILES((const Tensor& a), oslo::full_tensor(a), oslo::local_tensor(a), oslo::is_placed(a),
         oslo::is_followed(a), oslo::is_here(a), oslo::layout(a), oslo::value_of(a),
         oslo::whole_sizes(a), oslo::has_tangent(a), oslo::refuse_tangents("an operation"));
COMPILES((const Tensor& a, const oslo::MeshPtr& mesh, const oslo::ContextPtr& context),
         oslo::distribute(a, mesh, {oslo::sbp::split(0)}),
         oslo::distribute(a, context, {oslo::sbp::broadcast}),
         oslo::from_local(a, mesh, {oslo::sbp::split(0)}, {3, 2}),
         oslo::from_local(a, context, {oslo::sbp::broadcast()}, {3, 2}));
COMPILES((std::function<void(oslo::Call&)> rule), oslo::register_rule("my::op", rule),
         oslo::register_rule("my::op", "..T -> ..T"),
         oslo::register_rule("my::op", "..T -> ..T", "T"));
COMPILES((const oslo::ParallelModel& parallel), oslo::ZeroOptimizer<torch::optim::AdamW>(parallel),
         oslo::ZeroOptimizer<torch::optim::AdamW>(parallel, torch::optim::AdamWOptions(1e-3)),
         oslo::load_pretrained(parallel, "folder"), oslo::save_pretrained(parallel, "folder"));

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

/// Whether a line begins a namespace whose functions the documented ones are written with, or ends
/// it.
bool bounds_inner(const std::string& line) {
  static const std::regex bound(
      "(namespace (detail|recompute) \\{|\\}  // namespace (detail|recompute))");
  return std::regex_match(line, bound);
}

/// Names of all functions that are declared in these headers, outside of classes.
std::set<std::string> functions() {
  static const std::regex include("#include \"([^\"]+)\"");
  static const std::regex function("(?:[A-Za-z\\[][^()=#/]*[ &*>])?(\\w+)\\(.*");
  static const std::set<std::string> others{"static_assert", "TORCH_MODULE", "requires", "concept",
                                            "DistributedDataParallel"};
  std::set<std::string> names;
  for (const char* all : {"oslo_cpp/oslo.h", "oslo_cpp/pretrained.h"}) {
    const std::string list = read(all);
    for (std::sregex_iterator at(list.begin(), list.end(), include), end; at != end; ++at) {
      std::istringstream lines(read((*at)[1]));
      bool inner = false;
      for (std::string line; std::getline(lines, line);) {
        if (bounds_inner(line)) inner = !inner;
        std::smatch found;
        const bool declares = !inner && std::regex_match(line, found, function);
        if (declares && others.count(found[1]) == 0) names.insert(found[1]);
      }
    }
  }
  // Documented functions are written with these.
  for (const char* own : {"verify_modules", "initialize_for_engine"}) names.erase(own);
  return names;
}

TEST(DocumentedCalls, EveryFunctionIsCalled) {
  const std::string here = read("tests/documented_calls_test.cpp");
  const std::set<std::string> names = functions();
  EXPECT_GE(names.size(), 45u);
  for (const std::string& name : names) {
    const std::regex call("(oslo|pipeline|sbp|nn)::" + name + "[(<]");
    EXPECT_TRUE(std::regex_search(here, call)) << name;
  }
}

TEST(DocumentedCalls, EveryDeclarationForAModelIsTried) {
  const std::set<std::string> names = declared();
  EXPECT_GE(names.size(), 8u);
  for (const std::string& name : names) EXPECT_EQ(kTried.count(name), 1u) << name;
}

}  // namespace
