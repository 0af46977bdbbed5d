// A process group's own collectives, as a user calls them by hand: on a parameter or a gradient
// they move what this rank holds of it, in place. Gradients that are averaged so:
// gradients_by_hand.cpp.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <map>

#include "mpu/group/rank_check.h"
#include "tests/marked_parameters_test/process_group_ranks.h"
#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::vector<Tensor>;
using c10d::ProcessGroup;

/// Makes the operands of one operator, and keeps them for comparison: 2-dimensional, in parts of
/// the tensor-parallel ranks, other values on every data rank and in every operand.
class Operands {
 public:
  enum class As { local_tensor, parameter, activation };

  Operands(const MPU& mpu, As inputs, As outputs) : mpu_(mpu), inputs_(inputs), outputs_(outputs) {}

  Tensor in(int64_t rows = 4, int64_t columns = 7) { return make(rows, columns, inputs_); }
  Tensor out(int64_t rows = 4, int64_t columns = 7) { return make(rows, columns, outputs_); }

  Tensors made;

 private:
  Tensor make(int64_t rows, int64_t columns, As as) {
    const double start = 0.3 + 1.1 * mpu_.get_data_parallel_rank() + 0.2 * double(made.size());
    const Tensor whole = numbers({rows, columns}, start);
    Tensor tensor = marked(whole, mpu_, 1).detach();
    if (as == As::local_tensor) tensor = local_tensor(tensor).clone();
    if (as == As::activation) tensor = placed(whole, mpu_, 1);
    made.push_back(tensor);
    return tensor;
  }

  const MPU& mpu_;
  As inputs_, outputs_;
};

using Exercise = std::function<void(ProcessGroup&, Operands&)>;

template <typename Options>
Options from_last() {
  Options options;
  options.rootRank = 1;
  return options;
}

void exchange(ProcessGroup& group, Operands& operands, bool from_any) {
  if (group.getRank() == 0) {
    Tensors sent{operands.in()};
    group.send(sent, 1, 3)->wait();
  } else {
    Tensors got{operands.out()};
    (from_any ? group.recvAnysource(got, 3) : group.recv(got, 0, 3))->wait();
  }
}

/// Every operator of the namespace c10d, over two ranks.
const std::map<std::string, Exercise>& exercises() {
  static const std::map<std::string, Exercise> all = {
      {"c10d::allreduce_",
       [](ProcessGroup& group, Operands& operands) {
         Tensors tensors{operands.out()};
         group.allreduce(tensors)->wait();
       }},
      {"c10d::allreduce_coalesced_",
       [](ProcessGroup& group, Operands& operands) {
         Tensors tensors{operands.out(), operands.out(5, 3)};
         group.allreduce_coalesced(tensors)->wait();
       }},
      {"c10d::broadcast_",
       [](ProcessGroup& group, Operands& operands) {
         Tensors tensors{operands.out()};
         group.broadcast(tensors, from_last<c10d::BroadcastOptions>())->wait();
       }},
      {"c10d::reduce_",
       [](ProcessGroup& group, Operands& operands) {
         Tensors tensors{operands.out()};
         group.reduce(tensors, from_last<c10d::ReduceOptions>())->wait();
       }},
      {"c10d::allgather_",
       [](ProcessGroup& group, Operands& operands) {
         std::vector<Tensors> outputs{{operands.out(), operands.out()}};
         Tensors inputs{operands.in()};
         group.allgather(outputs, inputs)->wait();
       }},
      {"c10d::_allgather_base_",
       [](ProcessGroup& group, Operands& operands) {
         Tensor output = operands.out(8), input = operands.in();
         group._allgather_base(output, input)->wait();
       }},
      {"c10d::allgather_coalesced_",
       [](ProcessGroup& group, Operands& operands) {
         std::vector<Tensors> outputs{{operands.out()}, {operands.out()}};
         Tensors inputs{operands.in()};
         group.allgather_coalesced(outputs, inputs)->wait();
       }},
      {"c10d::allgather_into_tensor_coalesced_",
       [](ProcessGroup& group, Operands& operands) {
         Tensors outputs{operands.out(8), operands.out(6, 5)};
         Tensors inputs{operands.in(4), operands.in(3, 5)};
         group.allgather_into_tensor_coalesced(outputs, inputs)->wait();
       }},
      {"c10d::gather_",
       [](ProcessGroup& group, Operands& operands) {
         std::vector<Tensors> outputs;
         if (group.getRank() == 1) outputs = {{operands.out(), operands.out()}};
         Tensors inputs{operands.in()};
         group.gather(outputs, inputs, from_last<c10d::GatherOptions>())->wait();
       }},
      {"c10d::scatter_",
       [](ProcessGroup& group, Operands& operands) {
         std::vector<Tensors> inputs;
         if (group.getRank() == 1) inputs = {{operands.in(), operands.in()}};
         Tensors outputs{operands.out()};
         group.scatter(outputs, inputs, from_last<c10d::ScatterOptions>())->wait();
       }},
      {"c10d::reduce_scatter_",
       [](ProcessGroup& group, Operands& operands) {
         Tensors outputs{operands.out()};
         std::vector<Tensors> inputs{{operands.in(), operands.in()}};
         group.reduce_scatter(outputs, inputs)->wait();
       }},
      {"c10d::_reduce_scatter_base_",
       [](ProcessGroup& group, Operands& operands) {
         Tensor output = operands.out(), input = operands.in(8);
         group._reduce_scatter_base(output, input)->wait();
       }},
      {"c10d::reduce_scatter_tensor_coalesced_",
       [](ProcessGroup& group, Operands& operands) {
         Tensors outputs{operands.out(4), operands.out(3, 5)};
         Tensors inputs{operands.in(8), operands.in(6, 5)};
         group.reduce_scatter_tensor_coalesced(outputs, inputs)->wait();
       }},
      {"c10d::alltoall_base_",
       [](ProcessGroup& group, Operands& operands) {
         Tensor output = operands.out(), input = operands.in();
         std::vector<int64_t> in{1, 3}, out{1, 3};
         if (group.getRank() == 1) in = out = {3, 1};
         group.alltoall_base(output, input, out, in)->wait();
       }},
      {"c10d::alltoall_",
       [](ProcessGroup& group, Operands& operands) {
         Tensors outputs{operands.out(), operands.out()}, inputs{operands.in(), operands.in()};
         group.alltoall(outputs, inputs)->wait();
       }},
      {"c10d::send",
       [](ProcessGroup& group, Operands& operands) { exchange(group, operands, false); }},
      {"c10d::recv_",
       [](ProcessGroup& group, Operands& operands) { exchange(group, operands, false); }},
      {"c10d::recv_any_source_",
       [](ProcessGroup& group, Operands& operands) { exchange(group, operands, true); }},
      // Their tensor is LibTorch's own.
      {"c10d::barrier", [](ProcessGroup& group, Operands&) { group.barrier()->wait(); }},
      {"c10d::monitored_barrier_",
       [](ProcessGroup& group, Operands&) { group.monitoredBarrier({}, false); }},
  };
  return all;
}

using As = Operands::As;

/// What `exercise` does to local tensors, and its error if it throws one.
std::pair<Tensors, std::string> run(const Exercise& exercise, const MPU& mpu, As inputs,
                                    As outputs) {
  Operands operands(mpu, inputs, outputs);
  const std::string error = error_of([&] { exercise(*mpu.get_data_parallel_group(), operands); });
  return {std::move(operands.made), error};
}

TEST(ProcessGroupOperators, EachHasAnExercise) {
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("c10d::", 0) != 0) continue;
    EXPECT_EQ(exercises().count(name.name), 1) << name;
  }
}

TEST(ProcessGroupOperators, MoveThePartOfAParameter) {
  on_data_and_tensor_ranks([](const MPU& mpu) {
    for (const auto& [name, exercise] : exercises()) {
      const auto [expected, refusal] = run(exercise, mpu, As::local_tensor, As::local_tensor);
      for (const auto& [inputs, outputs] :
           std::vector<std::pair<As, As>>{{As::parameter, As::parameter},
                                          {As::parameter, As::local_tensor},
                                          {As::local_tensor, As::parameter}}) {
        const auto [actual, error] = run(exercise, mpu, inputs, outputs);
        // What a backend cannot do, it cannot do with a parameter either.
        EXPECT_EQ(error.empty(), refusal.empty()) << name << ": " << error << refusal;
        if (!refusal.empty()) continue;
        ASSERT_EQ(actual.size(), expected.size()) << name;
        for (size_t i = 0; i < actual.size(); ++i) {
          expect_close(local_tensor(actual[i]), expected[i], name);
        }
      }
    }
  });
}

/// OSLO_CHECK compares ordinary operands, which these operators need not have alike: they write to
/// some, and ordinary memory beside a parameter may hold another rank's part.
TEST(ProcessGroupOperators, AreNoBusinessOfTheRankCheck) {
  on_data_and_tensor_ranks([](const MPU& mpu) {
    const RankCheckScope on;
    for (const auto& [name, exercise] : exercises()) {
      if (!run(exercise, mpu, As::local_tensor, As::local_tensor).second.empty()) continue;
      EXPECT_EQ(run(exercise, mpu, As::parameter, As::local_tensor).second, "") << name;
      EXPECT_EQ(run(exercise, mpu, As::local_tensor, As::parameter).second, "") << name;
    }
  });
}

TEST(ProcessGroupOperators, RefuseAnActivationByName) {
  on_data_and_tensor_ranks([](const MPU& mpu) {
    for (const auto& [name, exercise] : exercises()) {
      if (name.find("barrier") != std::string::npos) continue;
      if (!run(exercise, mpu, As::local_tensor, As::local_tensor).second.empty()) continue;
      EXPECT_THAT(run(exercise, mpu, As::activation, As::activation).second,
                  HasSubstr("oslo::local_tensor(t)"))
          << name;
    }
  });
}

/// Lists of lists do not bring an operator to the door: the memory is asked for further down.
TEST(ProcessGroupOperators, RefuseActivationsInListsOfLists) {
  on_data_and_tensor_ranks([](const MPU& mpu) {
    for (const char* name : {"c10d::allgather_", "c10d::allgather_coalesced_"}) {
      EXPECT_NE(run(exercises().at(name), mpu, As::local_tensor, As::activation).second, "")
          << name;
    }
    EXPECT_NE(
        run(exercises().at("c10d::reduce_scatter_"), mpu, As::activation, As::local_tensor).second,
        "");
  });
}

TEST(ProcessGroupOperators, CombineNoPartsThatDiffer) {
  run_as_threads(4, [](World world) {
    const MPU mpu(world, MpuOptions().tensor_parallel_size(2));
    for (const auto& group : {mpu.get_tensor_parallel_group(), mpu.get_model_parallel_group()}) {
      Tensor gradient = marked(numbers({7, 5}), mpu).detach();
      const Tensor before = local_tensor(gradient).clone();
      Tensors tensors{gradient};
      EXPECT_THAT(error_of([&] { group->allreduce(tensors)->wait(); }),
                  AllOf(HasSubstr("c10d::allreduce_"), HasSubstr("another part"),
                        HasSubstr("get_data_parallel_group()")));
      EXPECT_THAT(error_of([&] { group->broadcast(tensors)->wait(); }),
                  HasSubstr("c10d::broadcast_"));
      expect_close(local_tensor(gradient), before, "refused");
      // To look at the parts is fine.
      const Tensor small = marked(numbers({6, 5}), mpu);
      std::vector<Tensors> outputs{
          {torch::empty({3, 5}, torch::kDouble), torch::empty({3, 5}, torch::kDouble)}};
      Tensors inputs{small.detach()};
      group->allgather(outputs, inputs)->wait();
      expect_close(small, torch::cat(outputs[0]), "gathered by hand");
    }
  });
}

TEST(ProcessGroupOperators, ByGroupNameAreRefused) {
  on_ranks(2, [](const MPU& mpu) {
    const auto all_reduce = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("_c10d_functional::all_reduce", "")
                                .typed<Tensor(const Tensor&, std::string, std::string)>();
    const Tensor gradient = marked(numbers({7, 5}), mpu).detach();
    EXPECT_THAT(error_of([&] { all_reduce.call(gradient, "sum", "0"); }),
                AllOf(HasSubstr("_c10d_functional::all_reduce"), HasSubstr("group->allreduce")));
  });
}

}  // namespace
}  // namespace oslo
