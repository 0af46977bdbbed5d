// Programs that draw random numbers without asking whether they are in training (stochastic depth):
// evaluation is Python's by a file of its own, and refused without.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <gmock/gmock.h>

#include <set>

#include "oslo_cpp/exported/graph/build_graph.h"
#include "oslo_cpp/exported/graph/training_flag.h"
#include "tests/exported_model_test/python_training.h"
#include "tests/support/error_of.h"
#include "tests/support/errors_of.h"
#include "tests/support/temporary_directory.h"

namespace oslo::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::filesystem::path file_of(const std::string& program) {
  return kExported / (program + ".pt2");
}

const PythonRun& deep() {
  static const PythonRun run = PythonRun("depth").evaluated_by("depth_evaluation");
  return run;
}

at::Tensor logits_of(ExportedModule& model) {
  const torch::NoGradGuard no_grad;
  return tensors_of(model.forward(values_of(deep().inputs(0)))).front();
}

TEST(ExportedEvaluation, StochasticDepthTrainsAndEvaluatesAsInPython) {
  expect_python(deep(), {},
                {.prepare = [](ExportedModule&) { at::manual_seed(5); }, .after = expect_silent});
}

/// Ranks that are threads share a generator, and cannot draw alike: what Python gives when the
/// whole model is trained in evaluation.
TEST(ExportedEvaluation, TheProgramOfEvaluationRunsOverRanks) {
  const Training still = {.prepare = [](ExportedModule& model) { model.eval(); }};
  const PythonRun run = PythonRun("depth", "depth_still").evaluated_by("depth_evaluation");
  expect_python(run, {1, 1}, still);
  expect_python(run, {1, 2}, still);
  expect_python(run, {1, 3}, still);
  expect_pipeline(run, 3, still);
}

/// The plan is that of training, and so are the stages: evaluation runs on them.
TEST(ExportedEvaluation, AModelThatWasCutInTrainingEvaluatesAsInPython) {
  const PythonRun still = PythonRun("depth", "depth_still").evaluated_by("depth_evaluation");
  for (const char* config :
       {R"({"model_parallelism": {"enable": true}})",  // data 2
        R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 2}})",
        R"({"model_parallelism": {"enable": true, "pipeline_parallel_size": 2}})"}) {
    at::Tensor wanted;
    {
      const auto model = still.load();
      model->eval();
      wanted = logits_of(*model);
    }
    run_as_threads(2, [&](World world) {
      at::set_num_threads(1);
      const auto model = still.load();
      InitializeOptions how;
      how.world = world;
      how.example_inputs = [&] { model->forward(values_of(still.inputs(0))); };
      const ParallelModel parallel = initialize(model, Config::parse(config), how);
      model->eval();
      parity::expect_close(full_tensor(logits_of(*model)), wanted, config, parity::kTrained);
    });
  }
}

TEST(ExportedEvaluation, WithoutAFileOfItsOwnItIsRefusedByNodeAndModule) {
  const auto model = load_exported(file_of("depth"));
  at::manual_seed(5);
  EXPECT_NO_THROW(logits_of(*model));  // in training
  model->eval();
  const auto refused =
      AllOf(HasSubstr("depth.pt2: node bernoulli_ (torch.ops.aten.bernoulli_.float) of "
                      "blocks.0.drop_path, and 1 more, draws random numbers"),
            HasSubstr("oslo::load_exported(\"train.pt2\", \"eval.pt2\")"));
  EXPECT_THAT(error_of([&] { logits_of(*model); }), refused);
  model->train();
  EXPECT_NO_THROW(logits_of(*model));
  // A part of the model: what is in training is not named.
  model->named_modules()["blocks.0.drop_path"]->eval();
  EXPECT_THAT(error_of([&] { logits_of(*model); }), refused);
}

TEST(ExportedEvaluation, EveryRankRefusesBeforeTheFirstCollective) {
  const std::vector<std::string> errors = errors_of(2, [&](World world) {
    at::set_num_threads(1);
    const auto model = make_seeded(1, [] { return load_exported(file_of("depth")); });
    InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { model->forward(model->example_inputs()); };
    initialize(model, Config::parse(parity::tensor_parallel(2)), how);
    model->eval();
    logits_of(*model);
  });
  ASSERT_EQ(errors.size(), 2u);
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("of blocks.0.drop_path"));
  }
}

/// Dropout that goes on in evaluation, to sample: the program of evaluation has none.
TEST(ExportedEvaluation, APartInTrainingIsRunByTheProgramOfTraining) {
  const auto model = deep().load();
  model->eval();
  const at::Tensor still = logits_of(*model);
  EXPECT_TRUE(at::equal(logits_of(*model), still));
  model->named_modules()["blocks.0.mlp.2"]->train();
  EXPECT_THAT(error_of([&] { logits_of(*model); }), HasSubstr("of blocks.0.drop_path"));
  model->named_modules()["blocks.0.drop_path"]->train();
  at::manual_seed(1);
  const at::Tensor sampled = logits_of(*model);
  EXPECT_FALSE(at::allclose(sampled, still));
  model->eval();
  EXPECT_TRUE(at::equal(logits_of(*model), still));
}

TEST(ExportedEvaluation, BothProgramsComputeWithTheSameTensors) {
  const auto model = deep().load();
  EXPECT_EQ(model->parameters().size(), load_exported(file_of("depth"))->parameters().size());
  model->eval();
  const at::Tensor before = logits_of(*model);
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) parameter.add_(0.1);
  }
  const at::Tensor after = logits_of(*model);
  EXPECT_FALSE(at::allclose(after, before));
  const auto copy = std::dynamic_pointer_cast<ExportedModule>(model->clone());
  EXPECT_TRUE(at::equal(logits_of(*copy), after));
}

TEST(ExportedEvaluation, FilesThatAreNotOfOneModelAreRefused) {
  const auto refused = [](const std::string& training, const std::string& evaluation) {
    return error_of([&] { load_exported(file_of(training), file_of(evaluation)); });
  };
  EXPECT_THAT(refused("depth", "vit"),
              HasSubstr("export the same model twice, in training and in evaluation"));
  EXPECT_THAT(refused("evaluated", "evaluated"),
              HasSubstr("evaluated.pt2 was exported in evaluation; the first file is that of "
                        "training"));
  EXPECT_THAT(refused("depth", "depth"),
              HasSubstr("depth.pt2 was exported in training; the second file is that of "
                        "evaluation"));
  EXPECT_THAT(refused("depth", "nowhere"), HasSubstr("nowhere.pt2"));
}

/// Of an argument without a default, a value that the schema takes.
nlohmann::json some_argument(const c10::Argument& argument) {
  const std::string type = argument.type()->str();
  if (argument.type()->kind() == c10::TypeKind::OptionalType) return {{"as_none", true}};
  if (type == "Tensor") return {{"as_tensor", {{"name", "x"}}}};
  if (type == "Tensor[]") {
    return {{"as_tensors", {{{"name", "x"}}, {{"name", "x"}}}}};
  }
  if (type == "float" || type == "Scalar" || type == "number") return {{"as_float", 0.5}};
  if (type == "bool") return {{"as_bool", true}};
  if (type == "int" || type == "SymInt") return {{"as_int", 2}};
  if (type == "int[]" || type == "SymInt[]") return {{"as_ints", {2}}};
  throw std::runtime_error("no value of type " + type);
}

/// A graph of one node that calls an operator.
nlohmann::json graph_of(const c10::FunctionSchema& schema) {
  nlohmann::json inputs = nlohmann::json::array(), outputs = nlohmann::json::array();
  for (const c10::Argument& argument : schema.arguments()) {
    // As in training, which some do not do unless it is said.
    const bool share = argument.name() == "dropout_p";
    const bool flag = argument.name() == "train" || argument.name() == "training";
    if (argument.default_value() && !share && !flag) continue;
    const nlohmann::json said = share  ? nlohmann::json{{"as_float", 0.5}}
                                : flag ? nlohmann::json{{"as_bool", true}}
                                       : some_argument(argument);
    inputs.push_back({{"name", argument.name()}, {"arg", said}, {"kind", 1}});
  }
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    const std::string name = "y" + std::to_string(i);
    const bool tensor = schema.returns()[i].type()->kind() == c10::TypeKind::TensorType;
    outputs.push_back(tensor ? nlohmann::json{{"as_tensor", {{"name", name}}}}
                             : nlohmann::json{{"as_sym_int", {{"as_name", name}}}});
  }
  const std::string overload = schema.overload_name().empty() ? "default" : schema.overload_name();
  const std::string name = schema.name();
  return {{"inputs", {{{"as_tensor", {{"name", "x"}}}}}},
          {"outputs", nlohmann::json::array()},
          {"nodes",
           {{{"target", "torch.ops.aten." + name.substr(name.find("::") + 2) + "." + overload},
             {"name", "node"},
             {"inputs", inputs},
             {"outputs", outputs},
             {"metadata", nlohmann::json::object()}}}}};
}

/// Every operator that draws, as its schema says, is told evaluation by a flag, or keeps evaluation
/// from running.
TEST(ExportedEvaluation, EveryOperatorThatDrawsHasAFlagOrIsNoted) {
  const torch::nn::Identity root;
  std::set<std::string> flagged;
  int noted = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto found = c10::Dispatcher::singleton().findSchema(name);
    if (!found || !name.name.starts_with("aten::")) continue;
    if (!found->hasTag(at::Tag::nondeterministic_seeded)) continue;
    const c10::FunctionSchema& schema = found->schema();
    // Neither a generator nor names of dimensions travel in a file, nor is an out= exported.
    const auto travels = [](const c10::Argument& argument) {
      const std::string type = argument.type()->str();
      return argument.default_value() ||
             (type.find("Generator") == std::string::npos &&
              type.find("Dimname") == std::string::npos &&
              type.find("ScalarType") == std::string::npos &&
              type.find("bool[]") == std::string::npos && !argument.is_out());
    };
    const auto& arguments = schema.arguments();
    if (!std::all_of(arguments.begin(), arguments.end(), travels)) continue;
    const nlohmann::json written = graph_of(schema);
    exported::GraphNotes notes;
    std::set<std::string> counters;
    exported::GraphContext context;
    context.module_at = [&](const std::string&) -> const torch::nn::Module& { return *root; };
    context.counters = &counters;
    context.notes = &notes;
    try {
      exported::build_graph(exported::Document(written, "file"), context);
    } catch (const Error& error) {
      ADD_FAILURE() << schema << ": " << error.what();
      continue;
    }
    EXPECT_EQ(notes.draws.size() + static_cast<size_t>(notes.flags_on), 1u) << schema;
    EXPECT_EQ(notes.asked.size(), 1u) << schema;
    noted += static_cast<int>(notes.draws.size());
    if (notes.flags_on > 0) flagged.insert(schema.name());
    // An operator with a flag that nobody sets would be refused in evaluation though it need not.
    const bool has_flag =
        schema.argumentIndexWithName("train") || schema.argumentIndexWithName("training");
    EXPECT_TRUE(!has_flag || notes.flags_on > 0) << schema;
  }
  EXPECT_GE(noted, 30);
  EXPECT_GE(flagged.size(), 12u);
}

}  // namespace
}  // namespace oslo::test
