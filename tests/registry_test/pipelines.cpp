// The document's program: a registered model by its config, over pipeline stages, against plain
// LibTorch on one device.
#include <gmock/gmock.h>

#include "oslo_cpp/registry/module_registry.h"
#include "oslo_cpp/registry/pipeline_model.h"
#include "tests/engine_test/cases.h"
#include "tests/support/error_of.h"

namespace oslo::test {
namespace registered {

/// The layers of engines::make_net, in doubles.
struct NetFromConfigImpl : ModelFromConfig {
  explicit NetFromConfigImpl(const nlohmann::json& arguments) {
    const int64_t in = arguments.at("arg1"), out = arguments.at("arg2");
    layers_cfg = {
        {{"type", "Linear"}, {"in_features", in}, {"out_features", 7}}, {{"type", "Tanh"}},
        {{"type", "Linear"}, {"in_features", 7}, {"out_features", 6}},  {{"type", "Tanh"}},
        {{"type", "Linear"}, {"in_features", 6}, {"out_features", 7}},  {{"type", "Tanh"}},
        {{"type", "Linear"}, {"in_features", 7}, {"out_features", out}}};
  }
};
TORCH_MODULE(NetFromConfig);
OSLO_REGISTER_MODULE(NetFromConfig);

}  // namespace registered

namespace engines {
namespace {

using testing::HasSubstr;

/// With the weights of make_net, whose layers were drawn in another order.
PipelineModel from_config(int chunks) {
  const nlohmann::json model_cfg = {{"type", "NetFromConfig"}, {"arg1", 3}, {"arg2", 2}};
  PipelineModel model =
      make_seeded(6, [&] { return build_pipeline_model_from_cfg(model_cfg, chunks); });
  model->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  parity::for_each_parameter(
      *model, *make_net(),
      [](const std::string&, Tensor mine, const Tensor& theirs) { mine.copy_(theirs); });
  return model;
}

PipelineModel from_sequential(int chunks) {
  return build_pipeline_model(make_net(), chunks);
}

/// `number`: of the pipeline, as Colossal-AI's `pipeline=2`.
void expect_document(const Grid& grid, int chunks, bool number, PipelineModel (*build)(int)) {
  SCOPED_TRACE(c10::str(grid.name(), ", chunks ", chunks));
  run_as_threads(grid.size(), [&](World world) {
    at::set_num_threads(1);
    PipelineModel model = build(chunks);
    PlainLoop plain(0);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
    const Batches batches = make_batches({8, 5});
    const std::string pipeline =
        number ? c10::str(grid.pipeline) : c10::str(R"({"size": )", grid.pipeline, "}");
    const Config config = Config::parse(c10::str(R"({"parallel": {"pipeline": )", pipeline, "}}"));
    auto [engine, train_loader] =
        oslo::initialize(model, optimizer, mean_loss, batches, config, in(world));
    oslo::PipelineSchedule schedule = chunks == 1
                                          ? oslo::PipelineSchedule(engine, 2)
                                          : oslo::InterleavedPipelineSchedule(engine, 2, chunks);
    auto data_iter = train_loader.begin();
    for (size_t i = 0; i < train_loader.size(); ++i) {
      engine.zero_grad();
      auto [output, label, loss] = schedule.forward_backward_step(
          engine, data_iter, oslo::StepOptions().forward_only(false));
      engine.step();
      plain.step({batches[i]});
    }
    parity::for_each_parameter(
        *model, *plain.net,
        [](const std::string& name, const Tensor& mine, const Tensor& expected) {
          if (!is_here(mine)) return;
          parity::expect_close(pipeline_parity::whole_here(mine.detach()), expected.detach(),
                               "weight " + name, parity::kTrained);
        });
  });
}

TEST(PipelineFromConfig, TrainsAsOnOneDevice) {
  expect_document({1, 1, 1}, 1, true, from_config);
  expect_document({1, 1, 2}, 1, true, from_config);
  expect_document({2, 1, 2}, 1, false, from_config);
  expect_document({1, 1, 2}, 2, true, from_config);
  expect_document({1, 1, 2}, 2, false, from_config);
  expect_document({1, 1, 1}, 2, true, from_config);
}

TEST(PipelineFromConfig, OfASequentialTrainsAsOnOneDevice) {
  expect_document({1, 1, 2}, 1, true, from_sequential);
  expect_document({1, 1, 2}, 2, false, from_sequential);
}

TEST(PipelineFromConfig, ChunksInOtherDialects) {
  PipelineModel model = from_config(2);
  const auto of = [&](const char* text) {
    return with_chunks_of(*model, Config::parse(text)).values().num_model_chunks.value_or(0);
  };
  EXPECT_EQ(of(R"({"model_parallelism": {"pipeline_parallel_size": 2}})"), 2);
  EXPECT_EQ(of(R"({"train": {"dist": {"pipeline_parallel_size": 2, "pipeline_num_layers": 4}}})"),
            2);
  EXPECT_EQ(of(R"({"parallel": {"pipeline": 1}})"), 0);
  EXPECT_EQ(of(R"({})"), 0);
  EXPECT_EQ(of(R"({"parallel": {"pipeline": {"size": 2, "num_model_chunks": 2}}})"), 2);
  EXPECT_THAT(
      error_of([&] { of(R"({"parallel": {"pipeline": {"size": 2, "num_model_chunks": 3}}})"); }),
      HasSubstr("'num_model_chunks' = 3 in the config, and the model was built for 2"));
}

/// The document's first way: the model split by the pipeline rank.
TEST(PipelineFromConfig, AModelSplitByHandIsToldThatAPipelineWantsTheWhole) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    const torch::nn::Sequential whole = make_net();
    torch::nn::Sequential part;
    for (size_t i = 0; i < whole->size(); ++i) {
      const auto layer = whole->begin() + static_cast<std::ptrdiff_t>(i);
      if ((i < 4) == (world.rank() == 0)) part->push_back(*layer);
    }
    const std::string message = error_of([&] {
      oslo::initialize(part, Config::parse(R"({"parallel": {"pipeline": 2}})"), in(world));
    });
    EXPECT_THAT(message,
                testing::AllOf(HasSubstr("the model differs between ranks"),
                               HasSubstr("and the whole of it: initialize itself divides it over "
                                         "the 2 ranks of the pipeline")));
  });
}

}  // namespace
}  // namespace engines
}  // namespace oslo::test
