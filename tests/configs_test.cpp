// Every file of tutorials/configs that says how a model is divided trains a language model as one
// device does, on the ranks that its first line names. Those that name a model are of `oslo train`:
// train_net_process_test and train_models_process_test have them.
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/models/sequence_language_model.h"
#include "tests/support/pipeline_parity.h"

namespace sequence_model {
namespace {

struct Written {
  std::string name, text;
  int ranks = 0;
};

std::vector<Written> all_configs() {
  std::vector<Written> found;
  for (const auto& file :
       std::filesystem::directory_iterator(OSLO_SOURCE_DIR "/tutorials/configs")) {
    if (file.path().extension() != ".json") continue;
    std::ifstream in(file.path());
    Written one{file.path().stem().string(), {std::istreambuf_iterator<char>(in), {}}};
    if (one.text.find("\"model\"") != std::string::npos) continue;
    one.ranks = std::stoi(one.text.substr(one.text.find(' ')));
    found.push_back(std::move(one));
  }
  std::sort(found.begin(), found.end(),
            [](const Written& a, const Written& b) { return a.name < b.name; });
  return found;
}

class Configs : public ::testing::TestWithParam<Written> {};

INSTANTIATE_TEST_SUITE_P(Of, Configs, ::testing::ValuesIn(all_configs()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Configs, TrainAsOneDeviceDoes) {
  const auto config = oslo::Config::parse(GetParam().text);
  const auto sizes = config.resolve(GetParam().ranks);
  Options o;
  o.hidden = 16;
  o.heads = o.key_heads = 8;
  o.layers = std::max(2, config.values().pipeline_num_layers.value_or(2 * sizes.pipeline));
  pipeline_parity::Trial trial;
  trial.grid = {sizes.data, GetParam().ranks / sizes.data / sizes.pipeline, sizes.pipeline};
  trial.config = GetParam().text;
  trial.micro_batches = 2;
  trial.steps = 2;
  pipeline_parity::expect_parity(
      trial, [&] { return LanguageModel(o); },
      [&](int) {
        return pipeline_parity::Tensors{torch::randint(o.words, {16, 9}, torch::kLong)};
      },
      [](LanguageModel& model, const pipeline_parity::Tensors& batch) {
        return model->loss(batch[0]);
      });
}

TEST(ConfigFiles, AreThere) {
  EXPECT_GE(all_configs().size(), 21U);
}

}  // namespace
}  // namespace sequence_model
