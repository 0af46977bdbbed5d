#include "oslo_cpp/initialize/model_library.h"

#include <c10/util/Exception.h>

#include <exception>
#include <iostream>
#include <string>

#include "mpu/base/error.h"
#include "mpu/base/text.h"

namespace oslo {
namespace {

Config config_of(int word_count, const char* const* words, int ranks) {
  Config config;
  if (word_count == 0) {
    config.set("model_parallelism.enable=true");
    config.set("model_parallelism.tensor_parallel_size=" + std::to_string(ranks));
  }
  for (int i = 0; i < word_count; ++i) {
    const std::string word = words[i];
    if (word.find('=') != std::string::npos) {
      config.set(word);
    } else {
      OSLO_CHECK(i == 0, "'", word,
                 "' is neither the config file, which comes first, nor an override", " path=value");
      config = Config::from_file(word);
    }
  }
  return config;
}

}  // namespace

int plan_library_model(const std::function<LibraryModel()>& make, int word_count,
                       const char* const* words) {
  try {
    LibraryModel made = make();
    made.options.world = World::from_environment();
    OSLO_CHECK(
        made.options.world.plan_only(),
        "a model library is for `oslo plan`, which sets OSLO_LAUNCHER=plan and OSLO_PLAN_RANKS");
    // The model is cut over all ranks, unless its file says the grid.
    const int ranks = made.options.axes.empty() ? made.options.world.size() : 1;
    const Config config = config_of(word_count, words, ranks);
    initialize(made.model, config, made.options);  // prints, and does not come back
  } catch (const std::exception& error) {
    std::cerr << "oslo plan: " << message_of(error) << "\n";
  }
  return 1;
}

}  // namespace oslo
