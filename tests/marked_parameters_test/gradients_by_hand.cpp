// Gradients averaged over a process group by hand, in the ways users write it.
#include <gmock/gmock.h>
#include <torch/csrc/utils/tensor_flatten.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tests/marked_parameters_test/process_group_ranks.h"
#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;
using ::testing::HasSubstr;
using Tensors = std::vector<Tensor>;
using c10d::ProcessGroup;

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
