// Messages between two ranks: what travels, in which order, and what happens when nothing comes.
#include "mpu/group/messages.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "mpu/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/transport_ranks.h"

namespace oslo {
namespace {

using at::Tensor;
using test::error_of;
using test::on_transport;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A tensor that travels on shared memory and on Gloo alike.
class Messages : public ::testing::TestWithParam<Transport> {};
INSTANTIATE_TEST_SUITE_P(Over, Messages,
                         ::testing::Values(Transport::shared_memory, Transport::gloo),
                         [](const auto& info) { return to_string(info.param); });

/// A tensor's bits: not every dtype can be compared.
Tensor bits(const Tensor& tensor) {
  const Tensor plain = tensor.detach().resolve_conj().resolve_neg().contiguous();
  return (plain.is_complex() ? at::view_as_real(plain) : plain).reshape(-1).view(at::kByte);
}

/// Undefined tensors are the same as each other.
void expect_same(const Tensor& came, const Tensor& sent, const std::string& what) {
  ASSERT_EQ(came.defined(), sent.defined()) << what;
  if (!sent.defined()) return;
  EXPECT_EQ(came.sizes(), sent.sizes()) << what;
  EXPECT_EQ(came.scalar_type(), sent.scalar_type()) << what;
  EXPECT_EQ(came.device(), sent.device()) << what;
  EXPECT_FALSE(came.requires_grad()) << what;
  if (sent.is_meta()) return;
  EXPECT_TRUE(at::equal(bits(came), bits(sent))) << what;
}

/// The same on sender and receiver.
std::vector<Tensor> every_kind() {
  const Tensor numbers = at::arange(24, at::kDouble).view({2, 3, 4});
  std::vector<Tensor> kinds{numbers,
                            numbers.transpose(0, 2),    // gaps
                            numbers.slice(2, 1, 4, 2),  // and others
                            numbers.select(0, 1).expand({5, 3, 4}),
                            at::scalar_tensor(7, at::kLong),  // no dimension
                            at::empty({0}),
                            at::empty({3, 0, 2}, at::kInt),  // no element
                            Tensor(),                        // nothing
                            numbers.clone().set_requires_grad(true),
                            at::complex(numbers, -numbers),
                            at::complex(numbers, -numbers).conj(),
                            at::imag(at::complex(numbers, -numbers).conj()),  // a sign left to do
                            at::empty({2, 3}, at::device(at::kMeta)),
                            at::full({70'000}, 3.5)};  // larger than what lies between two ranks
  for (const auto type : {at::kBool, at::kBFloat16, at::kHalf, at::kByte, at::kChar, at::kShort,
                          at::kInt, at::kLong, at::kFloat, at::kFloat8_e4m3fn}) {
    kinds.push_back(numbers.remainder(3).to(type));
  }
  return kinds;
}

TEST_P(Messages, BringTensorsOfEveryKindAndListsOfThem) {
  on_transport(3, GetParam(), [](Group& group) {
    const std::vector<Tensor> kinds = every_kind();
    if (group.rank() == 2) {
      for (const Tensor& each : kinds) group.send({each}, 0);
      group.send(kinds, 0);
      group.send({}, 0);
    }
    if (group.rank() == 0) {
      for (size_t i = 0; i < kinds.size(); ++i) {
        const auto came = group.receive(2);
        ASSERT_EQ(came.size(), 1U);
        expect_same(came[0], kinds[i], c10::str("kind ", i));
      }
      const auto came = group.receive(2, 0, kinds);
      ASSERT_EQ(came.size(), kinds.size());
      for (size_t i = 0; i < kinds.size(); ++i) expect_same(came[i], kinds[i], c10::str(i));
      EXPECT_TRUE(group.receive(2).empty());
    }
  });
}

TEST_P(Messages, HeadersThatAreLongerThanABlock) {
  on_transport(2, GetParam(), [](Group& group) {
    std::vector<Tensor> many;
    for (int64_t i = 0; i < 100; ++i) many.push_back(at::full({i % 3, 2}, static_cast<float>(i)));
    if (group.rank() == 0) group.send(many, 1, 5);
    if (group.rank() == 1) {
      const auto came = group.receive(0, 5);
      ASSERT_EQ(came.size(), many.size());
      for (size_t i = 0; i < many.size(); ++i) expect_same(came[i], many[i], c10::str(i));
    }
  });
}

TEST_P(Messages, NobodyWaitsForAReceiver) {
  // Every rank sends to all others first, more than fits anywhere, and receives afterwards.
  on_transport(3, GetParam(), [](Group& group) {
    constexpr int64_t kSize = 300'000;
    for (int round = 0; round < 3; ++round) {
      for (int to = 0; to < group.size(); ++to) {
        if (to == group.rank()) continue;
        Tensor sent = at::full({kSize}, 100.0 * group.rank() + round);
        group.send({sent}, to);
        sent.fill_(-1);  // it is the sender's again
      }
    }
    group.all_reduce(at::ones({3}));  // apart from collectives
    for (int round = 0; round < 3; ++round) {
      for (int from = group.size() - 1; from >= 0; --from) {
        if (from == group.rank()) continue;
        const auto came = group.receive(from);
        EXPECT_TRUE(at::equal(came[0], at::full({kSize}, 100.0 * from + round)));
      }
    }
  });
}

TEST_P(Messages, TagsAreReceivedInAnyOrderAndStartedOnesInTheirs) {
  on_transport(2, GetParam(), [](Group& group) {
    if (group.rank() == 0) {
      std::vector<PendingSend> sent;
      for (const int tag : {1, 2, 1, 3}) {
        sent.push_back(group.start_send({at::full({2}, tag + 10.0 * sent.size())}, 1, tag));
      }
      for (PendingSend& each : sent) each.wait();
    } else {
      const auto value = [](const std::vector<Tensor>& message) {
        return message.at(0)[1].item<double>();
      };
      EXPECT_EQ(value(group.receive(0, 3)), 33);
      PendingMessage first = group.start_receive(0, 1), second = group.start_receive(0, 1);
      EXPECT_EQ(value(second.wait()), 21);  // though it is waited for first
      EXPECT_EQ(value(first.wait()), 1);
      EXPECT_EQ(value(group.receive(0, 2)), 12);
      EXPECT_THAT(error_of([&] { first.wait(); }), HasSubstr("gives its tensors once"));
    }
  });
}

TEST_P(Messages, OneThatHasBegunToComeIsMovedByWhoeverWaits) {
  on_transport(2, GetParam(), [](Group& group) {
    if (group.rank() == 0) {
      for (const double value : {1.0, 2.0, 3.0}) group.send({at::full({5}, value)}, 1);
      return;
    }
    const auto received = [&] { return group.ledger().total("receive").calls; };
    PendingMessage first = group.start_receive(0), second = group.start_receive(0);
    second.await_arrival();
    EXPECT_EQ(received(), 1);  // the one before it
    second.await_arrival();
    EXPECT_TRUE(at::equal(second.wait().at(0), at::full({5}, 2.0)));
    EXPECT_EQ(received(), 2);
    first.await_arrival();
    EXPECT_TRUE(at::equal(first.wait().at(0), at::full({5}, 1.0)));
    EXPECT_THAT(error_of([&] { first.await_arrival(); }), HasSubstr("has been waited for"));
    PendingMessage third = group.start_receive(0, 0, {at::empty({4})});
    third.await_arrival();
    EXPECT_THAT(error_of([&] { third.wait(); }), HasSubstr("expected was"));
  });
}

TEST_P(Messages, HandlesThatAreDropped) {
  on_transport(2, GetParam(), [](Group& group) {
    const int other = 1 - group.rank();
    for (int i = 0; i < 20; ++i) {
      // Sent though nobody waits for it, from memory that nobody else has.
      group.start_send({at::full({40'000}, i + 0.5)}, other, i % 2);
    }
    group.start_receive(other, 0);  // takes the first message with it
    for (int i = 1; i < 20; ++i) {
      EXPECT_TRUE(at::equal(group.receive(other, i % 2)[0], at::full({40'000}, i + 0.5))) << i;
    }
  });
}

TEST_P(Messages, WhatIsWrittenToWhileItIsSentIsTold) {
  on_transport(2, GetParam(), [](Group& group) {
    if (group.rank() == 0) {
      Tensor tensor = at::ones({3});
      PendingSend sent = group.start_send({tensor}, 1);
      tensor.add_(1);
      EXPECT_THAT(error_of([&] { sent.wait(); }),
                  AllOf(HasSubstr("send over group all"), HasSubstr("tensor 0 was written to")));
    } else {
      group.receive(0);
    }
  });
}

TEST_P(Messages, OthersThanExpectedAreRefusedAndTheNextOneIsInItsPlace) {
  on_transport(2, GetParam(), [](Group& group) {
    if (group.rank() == 0) {
      for (int i = 0; i < 3; ++i) group.send({at::ones({2, 3}), Tensor()}, 1);
      group.send({at::ones({5})}, 1);
      return;
    }
    const auto expect_error = [&](const std::vector<Tensor>& like, const std::string& what) {
      EXPECT_THAT(error_of([&] { group.receive(0, 0, like); }),
                  AllOf(HasSubstr("receive over group all from rank 0"), HasSubstr(what)));
    };
    expect_error({at::ones({3, 2}), Tensor()}, "tensor 0 is Float[2, 3], expected was Float[3, 2]");
    expect_error({at::ones({2, 3}, at::kInt), Tensor()}, "expected was Int[2, 3]");
    expect_error({at::ones({2, 3})}, "2 tensors came, expected were 1");
    // Shapes may be said without memory: what comes is real.
    const auto came = group.receive(0, 0, {at::empty({5}, at::device(at::kMeta))});
    EXPECT_TRUE(at::equal(came[0], at::ones({5})));
  });
}

TEST_P(Messages, WrongArgumentsAreRefused) {
  on_transport(2, GetParam(), [](Group& group) {
    const int other = 1 - group.rank();
    EXPECT_THAT(error_of([&] { group.send({at::ones(1)}, 2); }),
                HasSubstr("number 2 is not in it"));
    EXPECT_THAT(error_of([&] { group.receive(-1); }), HasSubstr("number -1 is not in it"));
    EXPECT_THAT(error_of([&] { group.receive(group.rank()); }), HasSubstr("is this rank"));
    EXPECT_THAT(error_of([&] { group.send({at::ones(1)}, other, -4); }), HasSubstr("the tag -4"));
    EXPECT_THAT(error_of([&] {
                  group.send({at::ones({2, 2}).to_sparse()}, other);
                }),
                HasSubstr("send takes dense tensors"));
    EXPECT_EQ(group.ledger().total().calls, 0);
  });
}

TEST_P(Messages, ARankThatDiesIsNamed) {
  std::string seen;
  const std::string error = error_of([&] {
    on_transport(2, GetParam(), [&](Group& group) {
      group.all_reduce(at::ones({2}));
      if (group.rank() == 0) fail("the data of rank 0 is broken");
      seen = error_of([&] { group.receive(0, 9); });
      fail_as(ErrorKind::peer, seen);  // which may be told before the cause
    });
  });
  EXPECT_THAT(error, HasSubstr("the data of rank 0 is broken"));
  EXPECT_THAT(seen, AllOf(HasSubstr("receive from rank 0 with tag 9 over group all"),
                          HasSubstr("failed on rank 1"), HasSubstr("another rank has ended")));
}

TEST_P(Messages, ARankThatSendsNothingIsNamedAfterTheTimeLimit) {
  std::string seen;
  error_of([&] {
    on_transport(
        2, GetParam(),
        [&](Group& group) {
          group.all_reduce(at::ones({2}));
          if (group.rank() == 1) {
            seen = error_of([&] { group.receive(0); });
            fail("enough");
          }
          // Stays until the other one has given up.
          error_of([&] { group.receive(1); });
        },
        std::chrono::milliseconds(3500));
  });
  EXPECT_THAT(seen, AllOf(HasSubstr("receive from rank 0 with tag 0 over group all"),
                          HasSubstr("the time limit is 3500 ms, see OSLO_TIMEOUT")));
}

TEST_P(Messages, CountWhatIsReceivedAndTheHeaderAmongWhatMoves) {
  on_transport(2, GetParam(), [](Group& group) {
    const std::vector<Tensor> tensors{at::ones({2, 3}), at::ones({4}, at::kBFloat16), Tensor()};
    if (group.rank() == 0) group.send(tensors, 1);
    if (group.rank() == 1) group.receive(0);
    const bool receiver = group.rank() == 1;
    EXPECT_EQ(group.ledger().total("send"), (Traffic{receiver ? 0 : 1, 0, 0}));
    EXPECT_EQ(group.ledger().total("receive"), (receiver ? Traffic{1, 10, 32} : Traffic{}));
    EXPECT_EQ(group.ledger().moved(), receiver ? 32 + 1024 : 0);
  });
}

TEST(MessagesInDryRuns, NothingComesButWhatIsExpected) {
  const World world = World::fake(1, 4);
  const auto group = world.make_group("pipeline", {0, 1, 2, 3});
  group->send({at::ones({3})}, 2);
  const auto came = group->receive(0, 0, {at::empty({3, 2}, at::device(at::kMeta)), Tensor()});
  ASSERT_EQ(came.size(), 2U);
  EXPECT_TRUE(came[0].is_meta());
  EXPECT_EQ(came[0].sizes(), at::IntArrayRef({3, 2}));
  EXPECT_FALSE(came[1].defined());
  EXPECT_EQ(group->ledger().total("send"), (Traffic{1, 0, 0}));
  EXPECT_EQ(group->ledger().total("receive"), (Traffic{1, 6, 24}));
  EXPECT_EQ(group->ledger().moved(), 0);
  EXPECT_THAT(error_of([&] { group->receive(0); }), HasSubstr("say what is expected"));
}

TEST(MessageHeader, DamagedOnesAreRefused) {
  MessageHeader header;
  header.tensors.emplace_back(at::ones({2, 3}));
  const std::vector<int64_t> words = header.words();
  EXPECT_EQ(MessageHeader::count_words(words), MessageHeader::kWords);
  EXPECT_EQ(MessageHeader::from_words(words).tensors[0].to_text(), "Float[2, 3]");
  // Signature, length, device tensors, frame, tensors, dimensions, dtype, device, sizes.
  for (const size_t at : {0, 3, 4, 5, 6, 7, 8}) {
    std::vector<int64_t> damaged = words;
    damaged[at] = at == 4 ? 1'000 : -7;
    EXPECT_THROW(MessageHeader::from_words(damaged), Error) << "word " << at;
  }
  std::vector<int64_t> other = words;
  other[0] = 0;
  EXPECT_THROW(MessageHeader::count_words(other), Error);
  other = words;
  other[1] = int64_t{1} << 40;
  EXPECT_THROW(MessageHeader::count_words(other), Error);
}

}  // namespace
}  // namespace oslo
