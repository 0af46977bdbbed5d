#include "oslo_cpp/initialize/agreement.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>

#include "mpu/base/digest.h"
#include "mpu/base/error.h"
#include "mpu/group/rank_check.h"
#include "mpu/world/agreement.h"
#include "parallelizers/deferred/content.h"
#include "parallelizers/deferred/draws.h"
#include "parallelizers/deferred/fill.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

/// One line a parameter and buffer: name, shape and dtype; then the kind of device.
std::string structure_of(const ModelView& model) {
  std::ostringstream text;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    // Of one that an earlier initialize cut, the whole: parts may differ.
    const Mark* mark = mark_of(tensor);
    const auto sizes = tensor.sizes();
    text << name << " "
         << (mark == nullptr ? c10::str(sizes)
                             : c10::str(c10::IntArrayRef(mark->layout->global_sizes(sizes)), " ",
                                        mark->layout->to_string()))
         << " " << tensor.dtype().name() << (is_deferred(tensor) ? " (deferred)" : "") << "\n";
  };
  for (const ParameterView& parameter : model.parameters()) {
    add(parameter.path, parameter.registered);
  }
  for (const BufferView& buffer : model.buffers()) add(buffer.path, buffer.tensor);
  if (is_deferred(model)) {
    text << "the parameters and buffers are of " << states_of_draws(model).size(0)
         << " recorded draws\n";
  }
  if (!model.parameters().empty()) {
    // Digests of values are those of one kind of device.
    const auto type = model.parameters().front().registered.device().type();
    text << "on " << c10::DeviceTypeName(type, /*lower_case=*/true) << "\n";
  }
  return text.str();
}

/// One line a parameter in use and a buffer: name and a hash of its bytes, or of what will compute
/// them. What an earlier
/// initialize cut was compared by that.
std::string values_of(const ModelView& model) {
  std::ostringstream text;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (mark_of(tensor) != nullptr) return;
    const bool deferred = is_deferred(tensor);
    text << name << (deferred ? " (deferred, hash " : " (hash ") << std::hex
         << (deferred ? recipe_digest(tensor) : content_digest(tensor)) << ")\n";
  };
  for (const NamedTensor& parameter : model.in_use()) {
    add(parameter.name, parameter.tensor);
  }
  for (const BufferView& buffer : model.buffers()) add(buffer.path, buffer.tensor);
  return text.str();
}

/// A seed below was given by somebody.
constexpr uint64_t kDrawnSeeds = uint64_t{1} << 40;

constexpr const char* kSeedBefore =
    "call torch::manual_seed with one seed before building the model, or load the same file";

/// What one rank's generators tell the others.
struct Generators {
  std::string owner;  ///< the same where ranks are threads that share them
  std::vector<uint64_t> seeds;
  std::vector<std::string> states;
};

Generators told_of(const std::vector<at::Generator>& generators) {
  Generators told{std::to_string(::getpid()), {}, {}};
  for (at::Generator generator : generators) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    std::ostringstream state;
    // Without the device's number, which differs between ranks.
    state << c10::DeviceTypeName(generator.device().type(), /*lower_case=*/true) << " (state "
          << std::hex << content_digest(generator.get_state()) << ")";
    told.owner += c10::str("/", static_cast<const void*>(generator.unsafeGetGeneratorImpl()));
    told.seeds.push_back(generator.current_seed());
    told.states.push_back(state.str());
  }
  return told;
}

/// One rank's values and generators, as text.
struct Start {
  std::string values;
  Generators generators;

  std::string to_text() const {
    return nlohmann::json{{"values", values},
                          {"owner", generators.owner},
                          {"seeds", generators.seeds},
                          {"states", generators.states}}
        .dump();
  }
  static Start from_text(const std::string& text) {
    const auto said = nlohmann::json::parse(text);
    return {said.at("values"), {said.at("owner"), said.at("seeds"), said.at("states")}};
  }
};

bool is_never_seeded(const std::vector<Start>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [](const Start& rank) {
    const std::vector<uint64_t>& seeds = rank.generators.seeds;
    return std::all_of(seeds.begin(), seeds.end(), [](uint64_t s) { return s >= kDrawnSeeds; });
  });
}

/// Whether the states of two ranks differ only since each rank's generator began by itself.
bool began_apart(const Generators& a, const Generators& b) {
  if (a.states.size() != b.states.size()) return false;
  for (size_t i = 0; i < a.states.size(); ++i) {
    if (a.states[i] != b.states[i] && a.seeds[i] == b.seeds[i]) return false;
  }
  return true;
}

struct Verdict {
  bool never_seeded = false;
  TakenFromFirst taken = {};
  std::string refused = {};  ///< what is wrong with the states; empty: nothing
};

/// What all ranks together come to.
Verdict judge(const std::vector<Start>& ranks, const RankGrid& grid) {
  Verdict verdict{is_never_seeded(ranks)};
  for (const Start& rank : ranks) {
    if (rank.values != ranks[0].values) verdict.taken.weights = verdict.never_seeded;
  }
  for (const std::vector<int>& copy : grid.groups("model")) {
    const Generators& first = ranks[copy[0]].generators;
    for (const int number : copy) {
      const Generators& own = ranks[number].generators;
      if (own.owner == first.owner || own.states == first.states) continue;
      if (verdict.never_seeded && began_apart(own, first)) {
        verdict.taken.states = true;
      } else if (verdict.refused.empty()) {
        verdict.refused = c10::str(
            "initialize: the state of the default generator differs between ranks: rank ", copy[0],
            " has ", c10::Join(", ", first.states), ", rank ", number, " has ",
            c10::Join(", ", own.states),
            "; the ranks of one model draw the same numbers (dropout, initial values): call "
            "torch::manual_seed with one seed on them before initialize (data replicas may have "
            "seeds of their own)");
      }
    }
  }
  return verdict;
}

}  // namespace

TakenFromFirst agree_on_model(const World& world, const RankGrid& grid, const ModelView& model,
                              const std::vector<at::Generator>& generators) {
  if (world.size() == 1) return {};
  const int stages = grid.size("pipeline");
  agree_on_text(world, "initialize: the model", structure_of(model),
                stages == 1 ? std::string("build the same model on every rank")
                            : c10::str("build the same model on every rank, and the whole of it: "
                                       "initialize itself divides it over the ",
                                       stages,
                                       " ranks of the pipeline, so leave out what chooses layers "
                                       "by the pipeline rank (InitializeOptions::stages, or the "
                                       "config's \"stages\", say which layer is where)"));
  const std::string values = values_of(model);
  const Start start{std::to_string(digest_of(values)), told_of(generators)};
  const std::string said = world.decide(
      "the states of the generators", start.to_text(), [&](const std::vector<std::string>& texts) {
        std::vector<Start> ranks;
        for (const std::string& text : texts) ranks.push_back(Start::from_text(text));
        const Verdict verdict = judge(ranks, grid);
        return nlohmann::json{verdict.never_seeded, verdict.taken.weights, verdict.taken.states,
                              verdict.refused}
            .dump();
      });
  const auto verdict = nlohmann::json::parse(said);
  // What differs first is told first.
  if (!verdict.at(0).get<bool>()) {
    agree_on_text(world, "initialize: the initial value", values, kSeedBefore,
                  grid.groups("model"));
  }
  const std::string refused = verdict.at(3);
  if (!refused.empty()) fail(refused);
  return {verdict.at(1), verdict.at(2)};
}

void agree_on_values_everywhere(const World& world, const ModelView& model) {
  agree_on_text(world, "initialize: the initial value", values_of(model), kSeedBefore);
}

}  // namespace oslo
