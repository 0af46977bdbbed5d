// A process group's own collectives, as a user calls them by hand: on a parameter or a gradient
// they move what this rank holds of it, in place.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>
#include <torch/csrc/utils/tensor_flatten.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <map>

#include "mpu/rank_check.h"
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

/// `body` on 4 ranks, 2 tensor x 2 data, over each transport.
void on_data_and_tensor_ranks(const std::function<void(const MPU&)>& body) {
  for (const Transport transport : {Transport::shared_memory, Transport::gloo}) {
    run_as_threads(4, [&](World world) {
      body(MPU(world, MpuOptions().tensor_parallel_size(2).backend(transport)));
    });
  }
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

/// What users call the gradients' memory.
using Share = std::function<void(ProcessGroup&, const Tensors& parameters)>;

void sum_over(ProcessGroup& group, const Tensor& tensor) {
  Tensors tensors{tensor};
  group.allreduce(tensors)->wait();
}

TEST(ProcessGroupOperators, GradientsAveragedByHand) {
  const std::vector<std::pair<const char*, Share>> ways = {
      {"grad()",
       [](ProcessGroup& group, const Tensors& parameters) {
         for (const Tensor& p : parameters) sum_over(group, p.grad());
       }},
      {"grad().data()",
       [](ProcessGroup& group, const Tensors& parameters) {
         for (const Tensor& p : parameters) sum_over(group, p.grad().data());
       }},
      {"coalesced",
       [](ProcessGroup& group, const Tensors& parameters) {
         Tensors gradients;
         for (const Tensor& p : parameters) gradients.push_back(p.grad());
         group.allreduce_coalesced(gradients)->wait();
       }},
      {"started together",
       [](ProcessGroup& group, const Tensors& parameters) {
         std::vector<c10::intrusive_ptr<c10d::Work>> works;
         for (const Tensor& p : parameters) {
           Tensors tensors{p.grad()};
           works.push_back(group.allreduce(tensors));
         }
         for (const auto& work : works) work->wait();
       }},
      {"a copy, copied back",
       [](ProcessGroup& group, const Tensors& parameters) {
         for (const Tensor& p : parameters) {
           const Tensor copy = p.grad().clone();
           sum_over(group, copy);
           p.grad().copy_(copy);
         }
       }},
      {"what the work returns",
       [](ProcessGroup& group, const Tensors& parameters) {
         for (const Tensor& p : parameters) {
           Tensors tensors{p.grad().clone()};
           const auto work = group.allreduce(tensors);
           work->wait();
           p.grad().copy_(work->result()[0]);
         }
       }},
      {"all_gather and mean",
       [](ProcessGroup& group, const Tensors& parameters) {
         for (const Tensor& p : parameters) {
           std::vector<Tensors> parts{{at::empty_like(p.grad()), at::empty_like(p.grad())}};
           Tensors inputs{p.grad()};
           group.allgather(parts, inputs)->wait();
           p.grad().copy_(parts[0][0] + parts[0][1]);
         }
       }},
      {"local_tensor(view)",
       [](ProcessGroup& group, const Tensors& parameters) {
         for (const Tensor& p : parameters) sum_over(group, local_tensor(p.grad().view(-1)));
       }},
  };
  for (const auto& [name, share] : ways) {
    on_data_and_tensor_ranks([&, name = name, share = share](const MPU& mpu) {
      const Tensors whole{leaf(numbers({7, 5})), leaf(numbers({4}, 2.0)), leaf(numbers({3, 2}))};
      const Tensors cut{marked(whole[0], mpu, 1), marked(whole[1], mpu), leaf(whole[2])};
      const auto loss = [](const Tensors& parameters, int data_rank) {
        Tensor sum;
        for (const Tensor& p : parameters) {
          const Tensor part = (p * numbers(p.sizes(), data_rank + 0.5)).pow(2).sum();
          sum = sum.defined() ? sum + part : part;
        }
        return sum;
      };
      // Sizes of a parameter are local: numbers() above is of activations' sizes.
      const auto of = [&](const Tensors& parameters, int data_rank) {
        Tensors values;
        for (const Tensor& p : parameters) values.push_back(p * 1);
        return loss(values, data_rank);
      };
      (of(whole, 0) + of(whole, 1)).backward();
      of(cut, mpu.get_data_parallel_rank()).backward();
      torch::NoGradGuard no_grad;
      share(*mpu.get_data_parallel_group(), cut);
      for (size_t i = 0; i < cut.size(); ++i) {
        EXPECT_EQ(is_placed(cut[i].grad()), i < 2) << name;
        expect_close(cut[i].grad(), whole[i].grad(), name);
      }
    });
  }
}

TEST(ProcessGroupOperators, FlattenedGradientsAreRightOrRefused) {
  const std::vector<std::pair<const char*, Share>> ways = {
      {"view(-1)",
       [](ProcessGroup& group, const Tensors& parameters) {
         for (const Tensor& p : parameters) sum_over(group, p.grad().view(-1));
       }},
      {"flatten_dense_tensors",
       [](ProcessGroup& group, const Tensors& parameters) {
         Tensors gradients;
         for (const Tensor& p : parameters) gradients.push_back(p.grad());
         const Tensor flat = torch::utils::flatten_dense_tensors(gradients);
         sum_over(group, flat);
         const Tensors parts = torch::utils::unflatten_dense_tensors(flat, gradients);
         for (size_t i = 0; i < parts.size(); ++i) gradients[i].copy_(parts[i]);
       }},
      {"cat of views, cut up by numel()",
       [](ProcessGroup& group, const Tensors& parameters) {
         Tensors views;
         for (const Tensor& p : parameters) views.push_back(p.grad().view(-1));
         const Tensor flat = torch::cat(views);
         sum_over(group, flat);
         int64_t start = 0;
         for (const Tensor& p : parameters) {
           p.grad().copy_(flat.narrow(0, start, p.numel()).view(p.sizes()));
           start += p.numel();
         }
       }},
      {"cat of reshaped, cut up by view_as",
       [](ProcessGroup& group, const Tensors& parameters) {
         Tensors views;
         for (const Tensor& p : parameters) views.push_back(p.grad().reshape({-1}));
         const Tensor flat = torch::cat(views);
         sum_over(group, flat);
         int64_t start = 0;
         for (const Tensor& p : parameters) {
           p.grad().copy_(flat.slice(0, start, start + p.numel()).view_as(p.grad()));
           start += p.numel();
         }
       }},
  };
  for (const auto& [name, share] : ways) {
    for (const bool mixed : {false, true}) {
      on_data_and_tensor_ranks([&, name = name, share = share](const MPU& mpu) {
        const Tensors whole{leaf(numbers({7, 5})), leaf(numbers({4}, 2.0)), leaf(numbers({3, 2}))};
        const Tensors cut{marked(whole[0], mpu, 1), marked(whole[1], mpu),
                          mixed ? leaf(whole[2]) : marked(whole[2], mpu, 0)};
        const int rank = mpu.get_data_parallel_rank();
        const auto backward = [](const Tensors& parameters, double factor) {
          for (const Tensor& p : parameters) (p.pow(2).sum() * factor).backward();
        };
        backward(whole, 1 + 2);
        backward(cut, 1 + rank);
        torch::NoGradGuard no_grad;
        const std::string error = error_of([&] { share(*mpu.get_data_parallel_group(), cut); });
        if (!error.empty()) {
          EXPECT_THAT(error, HasSubstr("oslo::local_tensor(t)")) << name;
          return;
        }
        for (size_t i = 0; i < cut.size(); ++i) {
          expect_close(cut[i].grad(), whole[i].grad(), name);
        }
      });
    }
  }
}

}  // namespace
}  // namespace oslo
