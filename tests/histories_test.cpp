// Random training programs on cut models against plain LibTorch: losses, gradients, weights and
// norms after every step. OSLO_TEST_HISTORIES says how many a mesh, OSLO_HISTORY_SEED where to
// begin. One that fails is shrunk and printed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <random>

#include "tests/support/history_actions.h"
#include "tests/support/temporary_directory.h"

namespace {

using history::Action;
using history::actions;
using history::BlockKind;
using history::Numbers;
using history::Rule;
using history::Session;
using history::Setting;
using training::Device;
using training::Mesh;
using training::Notes;

struct Event {
  size_t action;
  Numbers numbers;
};

struct History {
  uint64_t seed = 0;
  Setting setting;
  std::vector<Event> events;
  std::string to_string() const;
};

std::string History::to_string() const {
  constexpr const char* kRuleNames[] = {"SGD",     "SGD momentum", "SGD nesterov",
                                        "Adam",    "Adam amsgrad", "AdamW amsgrad",
                                        "RMSprop", "Adagrad",      "LBFGS"};
  constexpr const char* kAveraging[] = {"DistributedDataParallel", "the library's group",
                                        "c10d's allreduce"};
  std::ostringstream text;
  text << "// seed " << seed << "\n"
       << "model = Net(" << history::to_string(setting.net) << ");\n";
  const std::string optimizer =
      std::string("optimizer = ") + kRuleNames[static_cast<int>(setting.rule)] +
      (setting.groups ? " in two groups" : "") + (setting.schedule ? " with StepLR" : "") + ";\n";
  if (setting.optimizer_first) text << optimizer;
  if (setting.zero) text << "// of ZeroOptimizer\n";
  if (setting.stage > 0) {
    text << "zero_optimization = {enabled: true, stage: " << setting.stage
         << ", shard_size: " << setting.shards
         << ", copies_per_host: " << (setting.one_copy ? 1 : 0) << "};\n";
  }
  text << "initialize(model" << (setting.example ? ", example" : "")
       << (setting.cut_own ? ", cut_own_parameters" : "") << ");\n";
  if (!setting.optimizer_first) text << optimizer;
  if (setting.average_model) text << "average = Net(the same); initialize(average);\n";
  if (!setting.recomputed.empty())
    text << "activation_checkpoint = " << setting.recomputed << ";\n";
  if (setting.fusion) text << "kernel_fusion = true;\n";
  if (setting.amp) text << "amp = " << *setting.amp << ";\n";
  if (setting.loss != 0) text << "loss = number " << setting.loss << " of loss_between;\n";
  text << "// gradients are averaged by " << kAveraging[static_cast<int>(setting.averaging)]
       << "\n";
  for (const Event& event : events) {
    std::string line = actions()[event.action].text;
    for (size_t i = 0; i < event.numbers.size(); ++i) {
      const std::string name = "%" + std::to_string(i);
      for (size_t at = line.find(name); at != std::string::npos; at = line.find(name)) {
        line.replace(at, name.size(), std::to_string(event.numbers[i]));
      }
    }
    text << line << ";\n";
  }
  return text.str();
}

/// Of the config, beside the mesh.
enum class Asked { nothing, recomputation, recomputation_in_half };

class Generator {
 public:
  Generator(uint64_t seed, const Mesh& mesh, Asked asked)
      : random_(seed), mesh_(mesh), asked_(asked) {
    history_.seed = seed;
  }

  History make() {
    Setting& s = history_.setting;
    make_net();
    s.rule = static_cast<Rule>(below(10) == 0 ? static_cast<int64_t>(Rule::lbfgs)
                                              : below(history::kRules - 1));
    s.optimizer_first = below(2) == 0;
    s.groups = below(3) == 0;
    s.schedule = below(4) == 0 && s.rule != Rule::lbfgs;
    s.example = below(5) != 0;
    s.cut_own = below(3) == 0;
    s.average_model = below(4) == 0;
    s.averaging = static_cast<history::Averaging>(below(3));
    s.loss = std::max<int64_t>(0, below(14) - 5);
    if (mesh_.data > 1) share_out();
    if (asked_ != Asked::nothing) ask();
    const int64_t count = 2 + below(6);
    while (static_cast<int64_t>(history_.events.size()) < count) add_event();
    return history_;
  }

 private:
  int64_t below(int64_t bound) { return static_cast<int64_t>(random_() % bound); }
  int64_t one_of(std::initializer_list<int64_t> of) {
    return of.begin()[below(int64_t(of.size()))];
  }

  void make_net() {
    history::NetOptions& net = history_.setting.net;
    net.tokens = below(3) != 0;
    net.inputs = one_of({5, 7, 11, 13, 17, 23});
    net.width = one_of({6, 9, 10, 12, 15});
    net.heads = net.width == 10 ? one_of({1, 2, 5}) : one_of({1, 3});
    net.length = one_of({2, 3, 5});
    const int64_t count = 1 + below(3);
    for (int64_t i = 0; i < count; ++i) {
      const auto kind =
          static_cast<BlockKind>(below(history::kBlockKinds - (mesh_.data > 1 ? 1 : 0)));
      net.blocks.push_back({kind, one_of({1, 5, 7, 8, 11, 13}), below(3) != 0});
    }
    net.tie = static_cast<history::Tie>(below(2) == 0 ? 0 : below(7));
    using history::Tie;
    if (!net.tokens && (net.tie == Tie::head_takes_table || net.tie == Tie::transposed_table ||
                        net.tie == Tie::table_has_two_names)) {
      net.tie = Tie::none;
    }
    if (net.tie == Tie::block_takes_weights) {
      const history::BlockOptions mlp{BlockKind::mlp, one_of({5, 8, 11}), true};
      net.blocks.insert(net.blocks.begin(), 2, mlp);
    }
  }

  /// By the seed alone, so that as many have each stage.
  void share_out() {
    Setting& s = history_.setting;
    const uint64_t turn = history_.seed / 4;
    switch (history_.seed % 4) {
      case 0:
        s.zero = s.rule != Rule::lbfgs;
        s.stage = static_cast<int>(turn % 3);
        return;
      case 1:  // gathered
        break;
      case 2:
        s.one_copy = true;
        break;
      default:
        return;
    }
    s.stage = 3;
    if (mesh_.data > 2) s.shards = turn % 2 == 0 ? 2 : 0;
    s.zero = turn % 3 == 0 && s.rule != Rule::lbfgs;
    s.averaging = history::Averaging::ddp;  // nobody averages parts by hand
  }

  void ask() {
    Setting& s = history_.setting;
    const char* const forms[] = {
        R"({"enabled": true})", R"({"enabled": true, "every": 2})",
        R"({"enabled": true, "keep": ["matmul", "attention", "convolution"]})",
        R"({"enabled": true, "keep": ["matmul"], "keep_at_most": 0.5})"};
    s.recomputed = forms[below(4)];
    if (asked_ == Asked::recomputation) {
      s.fusion = below(3) == 0;
      return;
    }
    s.amp = below(2) == 0 ? torch::kBFloat16 : torch::kHalf;
    s.average_model = false;
    if (s.rule == Rule::lbfgs) s.rule = Rule::adamw;
    // A recurrent layer casts a weight at every time.
    for (history::BlockOptions& block : s.net.blocks) {
      if (block.kind == BlockKind::gru) block.kind = BlockKind::fused_attention;
    }
  }

  void add_event() {
    const auto weight = [&](const Action& action) -> int64_t {
      return history_.setting.amp && !history::keeps_to_forwards(action) ? 0 : action.weight;
    };
    int64_t total = 0;
    for (const Action& action : actions()) total += weight(action);
    int64_t at = below(total);
    size_t which = 0;
    while (at >= weight(actions()[which])) at -= weight(actions()[which++]);
    const bool ddp = history_.setting.averaging == history::Averaging::ddp;
    if (ddp && actions()[which].own_graph) return;
    history_.events.push_back({which, {below(1000), below(1000), below(1000)}});
  }

  std::mt19937_64 random_;
  Mesh mesh_;
  Asked asked_;
  History history_;
};

struct Outcome {
  enum class Kind { equal, differs, refused, impossible } kind = Kind::equal;
  std::string what;
};

/// What this library refuses by name in a training program, on every rank: LBFGS, which flattens
/// parameters by the sizes of parts; c10d's collective on the gradient that a frozen weight has
/// kept of a pass with create_graph, a value of the whole's shape, of which no rank has memory; and
/// replicas that go other ways where weights are gathered.
/// Whoever sees that first throws, which is what the others are told.
bool may_be_refused(const std::vector<std::string>& refusals, const History& history) {
  const auto all_say = [&](std::initializer_list<const char*> texts) {
    return std::ranges::all_of(refusals, [&](const std::string& refusal) {
      return std::ranges::any_of(
          texts, [&](const char* text) { return refusal.find(text) != std::string::npos; });
    });
  };
  if (all_say({"torch::optim::LBFGS, does not work"})) return true;
  if (all_say({"c10d::allreduce_ on a tensor of shape"})) return true;
  const bool gathers = history.setting.stage == 3 && !history.setting.one_copy;
  const bool part_ways = std::ranges::any_of(history.events, [](const Event& event) {
    return std::string(actions()[event.action].text).starts_with("each data rank leaves");
  });
  return gathers && part_ways &&
         all_say({"ranks of a group did different things", "use the same layers in the same order",
                  "has thrown an exception"});
}

void play(Device& device, const History& history, const std::string& folder) {
  Session session(device, history.setting, folder);
  for (const Event& event : history.events) actions()[event.action].run(session, event.numbers);
}

Outcome outcome_of(const History& history, const Mesh& mesh) {
  Notes expected;
  at::set_num_threads(1);  // gradients of norms are added up by thread
  try {
    expected = training::on_one_device([&](Device& device) { play(device, history, ""); }, mesh);
  } catch (const std::exception& error) {
    return {Outcome::Kind::impossible, error.what()};  // a derivative that LibTorch has not
  }
  const bool finite = std::ranges::all_of(expected, [](const training::Note& note) {
    return !note.value.defined() || !note.value.isnan().any().item<bool>();
  });
  if (history.setting.amp && !finite) return {Outcome::Kind::impossible, "not-a-number"};
  // In half, on one rank, every bit is the same.
  const training::Tolerance tolerance =
      history.setting.amp ? training::Tolerance{0, 0} : training::Tolerance{1e-8, 1e-9};
  const oslo::test::TemporaryDirectory folder;
  std::vector<std::string> differences(mesh.size()), errors(mesh.size()), refusals(mesh.size());
  try {
    oslo::run_as_threads(
        mesh.size(),
        [&](oslo::World world) {
          at::set_num_threads(1);
          Device device(mesh, world);
          try {
            play(device, history, folder.path().string());
            differences[world.rank()] =
                training::difference(device.notes(), expected, mesh, device.data_rank(), tolerance);
          } catch (const oslo::Error& error) {
            refusals[world.rank()] = error.what();
            errors[world.rank()] = c10::str("oslo::Error: ", error.what());
            throw;
          } catch (const std::exception& error) {
            errors[world.rank()] = error.what();
            throw;
          }
        },
        std::chrono::seconds(60));
  } catch (const std::exception& error) {
    if (may_be_refused(refusals, history)) return {Outcome::Kind::refused, refusals.front()};
    std::string all;
    for (const std::string& text : errors) all += "  " + text.substr(0, 400) + "\n";
    return {Outcome::Kind::differs, c10::str(error.what(), "\n", all)};
  }
  for (const std::string& difference : differences) {
    if (!difference.empty()) return {Outcome::Kind::differs, difference};
  }
  return {};
}

/// The smallest history that still fails, one thing less at a time.
std::string shrunk(History history, const Mesh& mesh, std::string what) {
  const auto try_this = [&](const History& smaller) {
    const Outcome outcome = outcome_of(smaller, mesh);
    if (outcome.kind != Outcome::Kind::differs) return false;
    history = smaller;
    what = outcome.what;
    return true;
  };
  const auto try_setting = [&](const std::function<void(Setting&)>& change) {
    History smaller = history;
    change(smaller.setting);
    try_this(smaller);
  };
  for (size_t i = history.events.size(); i-- > 0;) {
    History smaller = history;
    smaller.events.erase(smaller.events.begin() + static_cast<int64_t>(i));
    try_this(smaller);
  }
  try_setting([](Setting& s) { s.net.tie = history::Tie::none; });
  // The first two may be tied.
  const size_t tied = history.setting.net.tie == history::Tie::none ? 0 : 2;
  for (size_t i = history.setting.net.blocks.size(); i-- > tied;) {
    try_setting([&](Setting& s) { s.net.blocks.erase(s.net.blocks.begin() + int64_t(i)); });
  }
  try_setting([](Setting& s) { s.recomputed = ""; });
  try_setting([](Setting& s) { s.fusion = false; });
  try_setting([](Setting& s) { s.average_model = false; });
  try_setting([](Setting& s) { s.rule = Rule::sgd; });
  try_setting([](Setting& s) { s.groups = false; });
  try_setting([](Setting& s) { s.loss = 0; });
  try_setting([](Setting& s) { s.schedule = false; });
  try_setting([](Setting& s) { s.zero = false; });
  try_setting([](Setting& s) { s.optimizer_first = true; });
  try_setting([](Setting& s) { s.cut_own = false; });
  try_setting([](Setting& s) { s.example = true; });
  try_setting([](Setting& s) { s.shards = 0; });
  try_setting([](Setting& s) { s.one_copy = false; });
  try_setting([](Setting& s) { s.stage = 0; });
  try_setting([](Setting& s) {
    if (s.stage < 3) s.averaging = history::Averaging::own_group;
  });
  return history.to_string() + what;
}

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

void expect_equal(const Mesh& mesh, Asked asked, int64_t otherwise) {
  const int64_t count = from_environment("OSLO_TEST_HISTORIES", otherwise);
  const auto seed = static_cast<uint64_t>(from_environment("OSLO_HISTORY_SEED", 1));
  // How many failures to look at before the test ends.
  const int64_t most = from_environment("OSLO_HISTORY_FAILURES", 1);
  int64_t refused = 0, impossible = 0, failed = 0;
  for (int64_t i = 0; i < count && failed < most; ++i) {
    const History history = Generator(seed + static_cast<uint64_t>(i), mesh, asked).make();
    const Outcome outcome = outcome_of(history, mesh);
    refused += outcome.kind == Outcome::Kind::refused;
    impossible += outcome.kind == Outcome::Kind::impossible;
    if (outcome.kind != Outcome::Kind::differs) continue;
    ++failed;
    // Shrinking one whose ranks wait for each other takes minutes.
    std::cerr << history.to_string() << "fails on " << mesh.name()
              << ", shrinking: " << outcome.what << std::endl;
    ADD_FAILURE() << "a history fails on " << mesh.name() << ":\n"
                  << shrunk(history, mesh, outcome.what);
  }
  EXPECT_LE(refused, 1 + count / 5) << "too much is refused";
  // In half a gradient may be none of the numbers that one has.
  const int64_t bound = asked == Asked::recomputation_in_half ? 1 + count / 4 : 1 + count / 8;
  EXPECT_LE(impossible, bound) << "too much is nothing that one device can do";
}

class Histories : public testing::TestWithParam<Mesh> {};

TEST_P(Histories, EqualOneDevice) {
  expect_equal(GetParam(), Asked::nothing, 8);
}

class RecomputedHistories : public testing::TestWithParam<Mesh> {};

TEST_P(RecomputedHistories, EqualOneDevice) {
  expect_equal(GetParam(), Asked::recomputation, 12);
}

/// One rank has two heads, which attention written by hand copies to put side by side, the other
/// has one, which lies so already: what there is to give up is not the same.
TEST(RecomputedHistories, RanksGiveUpTheSameOfWhatTheyShareInOtherWays) {
  History history;
  history.setting.net.tokens = false;
  history.setting.net.inputs = 23;
  history.setting.net.width = 12;
  history.setting.net.heads = 3;
  history.setting.net.length = 5;
  history.setting.net.blocks = {{BlockKind::attention, 13, true}};
  history.setting.recomputed = R"({"enabled": true, "keep": ["matmul"], "keep_at_most": 0.5})";
  history.events = {{0, {0, 0, 0}}, {0, {1, 0, 0}}};  // backward in parts, and a step
  const Outcome outcome = outcome_of(history, {2, 1});
  EXPECT_EQ(outcome.kind, Outcome::Kind::equal) << outcome.what;
}

TEST(RecomputedHistoriesInHalf, EqualOneDeviceUnderAGuardBitForBit) {
  expect_equal({1, 1}, Asked::recomputation_in_half, 24);
}

INSTANTIATE_TEST_SUITE_P(Meshes, RecomputedHistories,
                         testing::Values(Mesh{1, 1}, Mesh{2, 1}, Mesh{2, 2}, Mesh{1, 2},
                                         Mesh{1, 4}),
                         [](const auto& info) { return info.param.name(); });

INSTANTIATE_TEST_SUITE_P(Meshes, Histories,
                         testing::Values(Mesh{2, 1}, Mesh{3, 1}, Mesh{1, 2}, Mesh{2, 2},
                                         Mesh{1, 4}),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
