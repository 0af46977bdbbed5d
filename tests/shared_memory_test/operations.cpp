#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "mpu/transport/backends/process_group_gloo.h"
#include "mpu/transport/shared_memory/backend.h"
#include "tests/support/shared_memory_group.h"

// Every operation of the shared memory backend, against what LibTorch's own arithmetic says and
// against Gloo. Ranks are threads.
namespace oslo {
namespace {

using c10d::ReduceOp;
using ::oslo::test::each_rank;
using ::oslo::test::on_group;
using ::testing::Each;
using ::testing::IsEmpty;
using Op = ReduceOp::RedOpType;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kMedium = 20'001;  // many chunks, and no multiple of anything

/// Rank `rank`'s values: the same in every call, small enough that no integer sum overflows.
at::Tensor values(int rank, at::ScalarType type, at::IntArrayRef shape, int seed = 0) {
  auto generator = at::detail::createCPUGenerator(1000 * seed + rank);
  if (at::isComplexType(type)) return at::randn(shape, generator, at::TensorOptions(type));
  if (at::isFloatingType(type)) {
    return at::randn(shape, generator, at::TensorOptions(at::kFloat)).to(type);
  }
  return at::randint(0, type == at::kBool ? 2 : 9, shape, generator, at::TensorOptions(type));
}

/// What `op` over all ranks has to be, to the bit: in rank order; half types in float, rounded
/// once.
at::Tensor reduced(Op op, const Tensors& of_ranks) {
  const at::ScalarType type = of_ranks[0].scalar_type();
  const bool half = type == at::kHalf || type == at::kBFloat16;
  at::Tensor result = of_ranks[0].to(half ? at::kFloat : type, false, /*copy=*/true);
  for (size_t rank = 1; rank < of_ranks.size(); ++rank) {
    const at::Tensor next = of_ranks[rank].to(result.scalar_type());
    if (op == Op::SUM || op == Op::AVG) result = type == at::kBool ? result | next : result + next;
    if (op == Op::PRODUCT) result = type == at::kBool ? result & next : result * next;
    if (op == Op::MIN) result = at::minimum(result, next);
    if (op == Op::MAX) result = at::maximum(result, next);
    if (op == Op::BAND) result = result & next;
    if (op == Op::BOR) result = result | next;
    if (op == Op::BXOR) result = result ^ next;
  }
  const auto size = static_cast<int64_t>(of_ranks.size());
  if (op == Op::AVG && at::isIntegralType(type, false)) result = at::div(result, size, "trunc");
  if (op == Op::AVG && at::isFloatingType(type)) result = result / size;
  if (op == Op::AVG && at::isComplexType(type)) {
    result = at::view_as_complex(at::view_as_real(result) / size);
  }
  return result.to(type);
}

Tensors of_all(int ranks, at::ScalarType type, at::IntArrayRef shape, int seed = 0) {
  Tensors tensors;
  for (int rank = 0; rank < ranks; ++rank) tensors.push_back(values(rank, type, shape, seed));
  return tensors;
}

std::vector<Op> operations_of(at::ScalarType type) {
  if (at::isComplexType(type)) return {Op::SUM, Op::AVG};
  std::vector<Op> operations = {Op::SUM, Op::PRODUCT, Op::MIN, Op::MAX};
  if (type != at::kBool) operations.push_back(Op::AVG);
  if (at::isIntegralType(type, true)) {
    operations.insert(operations.end(), {Op::BAND, Op::BOR, Op::BXOR});
  }
  return operations;
}

const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kDouble,       at::kHalf, at::kBFloat16,
                                            at::kChar,  at::kByte,         at::kInt,  at::kLong,
                                            at::kBool,  at::kComplexFloat, at::kShort};

c10d::AllreduceOptions all_reduce_of(ReduceOp op) {
  c10d::AllreduceOptions options;
  options.reduceOp = std::move(op);
  return options;
}

at::Tensor all_reduce(c10d::Backend& group, at::Tensor tensor, const ReduceOp& op = Op::SUM) {
  Tensors tensors{tensor};
  group.allreduce(tensors, all_reduce_of(op))->wait();
  return tensor;
}

/// The same bits; NaN equals itself.
void expect_same(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  EXPECT_TRUE(got.sizes() == expected.sizes() && got.dtype() == expected.dtype()) << what;
  EXPECT_TRUE(at::allclose(got, expected, 0, 0, /*equal_nan=*/true)) << what;
}

std::string label(int ranks, at::ScalarType type, Op op, int64_t size) {
  return c10::str(ranks, " ranks, ", type, ", op ", static_cast<int>(op), ", size ", size);
}

class Ranks : public ::testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(SharedMemory, Ranks, ::testing::Values(1, 2, 3, 4, 8));

TEST_P(Ranks, ReductionsOfEveryTypeAndOperation) {
  each_rank(ranks(), [&](SharedMemoryBackend& group, int rank) {
    for (const at::ScalarType type : kTypes) {
      for (const Op op : operations_of(type)) {
        for (const int64_t size : {0, 1, 37, 2'051}) {
          const at::Tensor expected = reduced(op, of_all(ranks(), type, {size}));
          const auto what = label(ranks(), type, op, size);
          expect_same(all_reduce(group, values(rank, type, {size}), op), expected, what);
          Tensors kept{values(rank, type, {size})};
          c10d::ReduceOptions options;
          options.reduceOp = op;
          options.rootRank = ranks() - 1;
          group.reduce(kept, options)->wait();
          expect_same(kept[0], rank == options.rootRank ? expected : values(rank, type, {size}),
                      "reduce, " + what);
        }
      }
    }
  });
}

TEST_P(Ranks, ReductionsInSeveralChunks) {
  each_rank(ranks(), [&](SharedMemoryBackend& group, int rank) {
    for (const auto type : {at::kFloat, at::kBFloat16, at::kLong}) {
      for (const int64_t size : {int64_t{1024}, int64_t{1025}, int64_t{2048}, kMedium}) {
        expect_same(all_reduce(group, values(rank, type, {size})),
                    reduced(Op::SUM, of_all(ranks(), type, {size})),
                    label(ranks(), type, Op::SUM, size));
      }
    }
  });
}

TEST_P(Ranks, ReduceScatterAlsoOfUnevenParts) {
  each_rank(ranks(), [&](SharedMemoryBackend& group, int rank) {
    for (const int64_t scale : {0, 1, 503, 3'001}) {
      // Rank r gets (r + 1) * scale elements, rank 0 none.
      Tensors parts, output{at::empty({rank * scale})};
      std::vector<Tensors> inputs(1);
      for (int r = 0; r < ranks(); ++r) {
        inputs[0].push_back(values(rank, at::kFloat, {r * scale}, r));
      }
      group.reduce_scatter(output, inputs, {})->wait();
      const auto expected = reduced(Op::SUM, of_all(ranks(), at::kFloat, {rank * scale}, rank));
      expect_same(output[0], expected, c10::str("scale ", scale));

      at::Tensor whole = values(rank, at::kHalf, {ranks(), scale});
      at::Tensor mine = at::empty({scale}, at::kHalf);
      group._reduce_scatter_base(mine, whole, {})->wait();
      expect_same(mine, reduced(Op::SUM, of_all(ranks(), at::kHalf, {ranks(), scale}))[rank],
                  c10::str("one tensor, scale ", scale));
    }
  });
}

TEST_P(Ranks, GathersBroadcastsAndScatters) {
  const auto body = [&](SharedMemoryBackend& group, int rank) {
    const int last = ranks() - 1;
    for (const auto type :
         {at::kFloat, at::kBool, at::kComplexFloat, at::kLong, at::kFloat8_e4m3fn}) {
      for (const int64_t scale : {0, 1, 1'025, 3'001}) {
        const std::string what = c10::str(ranks(), " ranks, ", type, ", scale ", scale);
        const auto make = [&](int r, int64_t size, int seed) {
          return type == at::kFloat8_e4m3fn ? values(r, at::kFloat, {size}, seed).to(type)
                                            : values(r, type, {size}, seed);
        };
        const auto same = [&](const at::Tensor& a, const at::Tensor& b) {
          EXPECT_TRUE(a.numel() == b.numel() && at::equal(a.view(at::kByte), b.view(at::kByte)))
              << what;
        };
        Tensors input{make(rank, (rank + 1) * scale, 0)};
        std::vector<Tensors> outputs(1);
        for (int r = 0; r < ranks(); ++r) outputs[0].push_back(at::empty({(r + 1) * scale}, type));
        group.allgather(outputs, input, {})->wait();
        for (int r = 0; r < ranks(); ++r) same(outputs[0][r], make(r, (r + 1) * scale, 0));

        for (at::Tensor& output : outputs[0]) output = at::empty_like(output);
        c10d::GatherOptions gather;
        gather.rootRank = last;
        std::vector<Tensors> nothing;
        group.gather(rank == last ? outputs : nothing, input, gather)->wait();
        for (int r = 0; rank == last && r < ranks(); ++r) {
          same(outputs[0][r], make(r, (r + 1) * scale, 0));
        }

        c10d::ScatterOptions scatter;
        scatter.rootRank = last;
        std::vector<Tensors> sent(rank == last ? 1 : 0);
        for (int r = 0; rank == last && r < ranks(); ++r)
          sent[0].push_back(make(r, (r + 1) * scale, 1));
        Tensors received{at::empty({(rank + 1) * scale}, type)};
        group.scatter(received, sent, scatter)->wait();
        same(received[0], make(rank, (rank + 1) * scale, 1));

        c10d::BroadcastOptions broadcast;
        broadcast.rootRank = last;
        Tensors spread{make(rank, scale, 2)};
        group.broadcast(spread, broadcast)->wait();
        same(spread[0], make(last, scale, 2));

        at::Tensor all = at::empty({ranks() * scale}, type), part = make(rank, scale, 3);
        group._allgather_base(all, part, {})->wait();
        for (int r = 0; r < ranks(); ++r)
          same(all.slice(0, r * scale, (r + 1) * scale), make(r, scale, 3));
      }
    }
  };
  each_rank(ranks(), body);
}

TEST_P(Ranks, AllToAllEvenAndUneven) {
  const auto body = [&](SharedMemoryBackend& group, int rank) {
    const auto between = [&](int from, int to, int64_t rows) {
      return values(from, at::kDouble, {rows, 3}, to);
    };
    for (const int64_t scale : {0, 1, 70, 1'000}) {
      // From rank a to rank b: (a + 2 b) * scale rows.
      Tensors inputs, outputs, expected;
      std::vector<int64_t> in_rows, out_rows;
      for (int r = 0; r < ranks(); ++r) {
        in_rows.push_back((rank + 2 * r) * scale);
        out_rows.push_back((r + 2 * rank) * scale);
        inputs.push_back(between(rank, r, in_rows[r]));
        outputs.push_back(at::empty({out_rows[r], 3}, at::kDouble));
        expected.push_back(between(r, rank, out_rows[r]));
      }
      group.alltoall(outputs, inputs, {})->wait();
      for (int r = 0; r < ranks(); ++r) expect_same(outputs[r], expected[r], "alltoall");
      at::Tensor input = at::cat(inputs), output = at::empty_like(at::cat(expected));
      group.alltoall_base(output, input, out_rows, in_rows, {})->wait();
      expect_same(output, at::cat(expected), "alltoall_base");

      Tensors even_in, even_out;
      for (int r = 0; r < ranks(); ++r) {
        even_in.push_back(between(rank, r, scale));
        even_out.push_back(between(r, rank, scale));
      }
      input = at::cat(even_in);
      output = at::empty_like(input);
      std::vector<int64_t> none;
      group.alltoall_base(output, input, none, none, {})->wait();
      expect_same(output, at::cat(even_out), "even alltoall_base");
    }
  };
  each_rank(ranks(), body);
}

TEST_P(Ranks, Coalesced) {
  const auto body = [&](SharedMemoryBackend& group, int rank) {
    Tensors tensors, gathered, parts, inputs, outputs;
    std::vector<Tensors> lists(ranks());
    for (const int64_t size : {3, 0, 5'000}) {
      tensors.push_back(values(rank, at::kFloat, {size}));
      inputs.push_back(values(rank, at::kFloat, {ranks() * size}));
      outputs.push_back(at::empty({size}));
      gathered.push_back(at::empty({ranks() * size}));
      for (Tensors& list : lists) list.push_back(at::empty({size}));
    }
    group.allgather_into_tensor_coalesced(gathered, tensors, {})->wait();
    group.allgather_coalesced(lists, tensors, {})->wait();
    group.reduce_scatter_tensor_coalesced(outputs, inputs, {})->wait();
    group.allreduce_coalesced(tensors, {})->wait();
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto all = of_all(ranks(), at::kFloat, tensors[i].sizes());
      const int64_t size = tensors[i].numel();
      expect_same(tensors[i], reduced(Op::SUM, all), "allreduce_coalesced");
      expect_same(gathered[i], at::cat(all), "allgather_into_tensor_coalesced");
      for (int r = 0; r < ranks(); ++r) expect_same(lists[r][i], all[r], "allgather_coalesced");
      expect_same(outputs[i],
                  reduced(Op::SUM, of_all(ranks(), at::kFloat, {ranks() * size}))
                      .slice(0, rank * size, (rank + 1) * size),
                  "reduce_scatter_tensor_coalesced");
    }
  };
  each_rank(ranks(), body);
}

TEST_P(Ranks, TensorsWithGapsOrAnotherOrder) {
  const auto body = [&](SharedMemoryBackend& group, int rank) {
    const auto all = of_all(ranks(), at::kFloat, {31, 200});
    at::Tensor strided = at::zeros({31, 2, 200}).select(1, 1);
    strided.copy_(all[rank]);
    expect_same(all_reduce(group, strided), reduced(Op::SUM, all), "with gaps");
    at::Tensor transposed = all[rank].t().contiguous().t();
    expect_same(all_reduce(group, transposed), reduced(Op::SUM, all), "transposed");
    Tensors input{all[rank].t()};
    std::vector<Tensors> outputs(1);
    at::Tensor room = at::empty({ranks(), 31, 200});
    for (int r = 0; r < ranks(); ++r) outputs[0].push_back(room[r].t());
    group.allgather(outputs, input, {})->wait();
    for (int r = 0; r < ranks(); ++r) expect_same(room[r], all[r], "gathered transposed");
    const at::Tensor conjugate = at::conj(values(rank, at::kComplexFloat, {10}));
    at::Tensor joined = at::empty({ranks() * 10}, at::kComplexFloat), mine = conjugate;
    group._allgather_base(joined, mine, {})->wait();
    expect_same(joined.slice(0, rank * 10, rank * 10 + 10), conjugate.resolve_conj(), "conjugate");
  };
  each_rank(ranks(), body);
}

TEST(SharedMemory, MultipliesEachRanksOwnFactorBeforeTheSum) {
  each_rank(3, [](SharedMemoryBackend& group, int rank) {
    const auto op = c10d::makeNCCLPreMulSum(rank + 0.5);
    EXPECT_EQ(all_reduce(group, at::full({5}, 2.0), op)[4].item<float>(), 9.0);
    const auto tensor_op = c10d::makeNCCLPreMulSum(at::scalar_tensor(rank));
    EXPECT_EQ(all_reduce(group, at::ones({5}), tensor_op)[4].item<float>(), 3.0);
  });
}

TEST(SharedMemory, SixtyFourMegabytes) {
  constexpr int64_t kSize = 16 * 1024 * 1024;
  const auto body = [](SharedMemoryBackend& group, int rank) {
    at::Tensor tensor = at::arange(kSize, at::kFloat).remainder_(1009);
    if (rank == 1) tensor.mul_(2);
    all_reduce(group, tensor);
    const at::Tensor expected = at::arange(kSize, at::kFloat).remainder_(1009).mul_(3);
    EXPECT_TRUE(at::equal(tensor, expected));
  };
  const auto adjust = [](auto& options, int) { options.chunk_bytes = 256 * 1024; };
  EXPECT_THAT(on_group(2, body, adjust), Each(IsEmpty()));
}

TEST(SharedMemory, SaysWhatGlooSays) {
  auto gloo_store = c10::make_intrusive<c10d::HashStore>();
  const auto body = [&](SharedMemoryBackend& group, int rank) {
    Rendezvous rendezvous;
    const auto gloo = make_gloo_backend(rendezvous, gloo_store, rank, 3);
    for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar, at::kByte,
                            at::kInt, at::kLong}) {
      for (const Op op : {Op::SUM, Op::PRODUCT, Op::MIN, Op::MAX}) {
        // Small whole numbers: exact in every order.
        const at::Tensor tensor = values(rank, at::kLong, {1001}).to(type);
        expect_same(all_reduce(group, tensor.clone(), op), all_reduce(*gloo, tensor.clone(), op),
                    label(3, type, op, 1001));
      }
    }
  };
  each_rank(3, body);
}

}  // namespace
}  // namespace oslo
