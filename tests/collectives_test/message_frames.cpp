// Messages over Gloo that travel in one piece with their header, and those that are asked for
// early.
#include "mpu/group/message_frame.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "mpu/base/error.h"
#include "mpu/group/messages.h"
#include "tests/support/error_of.h"
#include "tests/support/transport_ranks.h"

namespace oslo {
namespace {

using at::Tensor;
using test::error_of;
using test::on_transport;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using From = MessageFrames::From;

MessageHeader header_of(const std::vector<Tensor>& tensors) {
  MessageHeader header;
  for (const Tensor& tensor : tensors) header.tensors.emplace_back(tensor);
  return header;
}

TEST(MessageFrame, HasTheTensorsThatHaveBytes) {
  const std::vector<Tensor> tensors{at::arange(7),
                                    Tensor(),
                                    at::arange(6.0).view({2, 3}).t(),
                                    at::empty({0, 2}),
                                    at::complex(at::ones({3}), -at::ones({3})).conj(),
                                    at::empty({4}, at::device(at::kMeta))};
  MessageHeader header = header_of(tensors);
  header.framed_bytes = MessageFrame::bytes_of(header);
  EXPECT_EQ(header.framed_bytes, 64 + 64 + 64);
  const Tensor frame = MessageFrame::pack(header, tensors);
  EXPECT_EQ(frame.nbytes(), MessageFrame::kHeaderBytes + 192);
  std::vector<Tensor> places;
  for (const Tensor& tensor : tensors) {
    places.push_back(tensor.defined() ? at::empty(tensor.sizes(), tensor.options()) : Tensor());
  }
  MessageFrame::unpack(header, frame, places);
  for (const size_t i : {0, 2, 4}) EXPECT_TRUE(at::equal(places[i], tensors[i])) << i;
}

TEST(MessageFrame, NotOfLargeMessagesNorOfLongHeaders) {
  const auto bytes = [](const std::vector<Tensor>& tensors) {
    return MessageFrame::bytes_of(header_of(tensors));
  };
  const int64_t most = MessageFrame::kMostBytes;
  EXPECT_EQ(bytes({at::empty({most}, at::kByte)}), most);
  EXPECT_EQ(bytes({at::empty({most + 1}, at::kByte)}), 0);
  EXPECT_EQ(bytes({at::empty({most}, at::kByte), at::ones({1})}), 0);
  EXPECT_EQ(bytes(std::vector<Tensor>(100, at::ones({1}))), 0);
  EXPECT_EQ(bytes({}), 0);
}

TEST(MessageFrames, ARoundBeginsWhereOneComesAgain) {
  MessageFrames frames;
  const From a{1, 0}, b{1, 2}, c{3, 0}, high{1, 1 << 20};
  const MessageHeader header = header_of({at::ones({5})});
  const auto receive = [&](From from) {
    const std::vector<From> early = frames.in_round(from);
    for (const From& each : early) frames.asked_for(each, {at::empty({1}), nullptr});
    frames.take(from);
    frames.passed(from, header);
    return early;
  };
  for (const From& each : {a, b, c, high}) EXPECT_THAT(receive(each), IsEmpty());
  EXPECT_EQ(frames.next(a), 64);
  EXPECT_EQ(frames.next(high), 0);  // by so many tags nobody is remembered
  EXPECT_THAT(receive(b), UnorderedElementsAre(a, b, c));
  EXPECT_THAT(receive(c), IsEmpty());
  // a has been asked for and did not come: it is not asked for twice.
  EXPECT_THAT(receive(c), UnorderedElementsAre(b, c));
  // Of one that is being received nobody asks for another.
  frames.take(a);
  EXPECT_THAT(frames.in_round(c), ElementsAre(c));
  frames.passed(a, header);
  EXPECT_THAT(frames.in_round(c), ElementsAre(a, c));
}

/// Sizes that stay, change and come back; the ledger tells of pieces and frames alike.
TEST(MessagesOverGloo, OfAnySizesBehindEachOther) {
  on_transport(2, Transport::gloo, [](Group& group) {
    std::vector<std::vector<Tensor>> messages;
    for (const int64_t size : {3, 3, 3, 8, 8, 1, 40, 40, 0, 0, 3, 3, 1'500'000, 1'500'000, 3, 3}) {
      messages.push_back({at::full({size}, 1.0 * messages.size()), Tensor()});
    }
    messages.push_back({});
    messages.push_back(std::vector<Tensor>(100, at::ones({1})));
    messages.push_back({at::ones({3}, at::kLong), at::full({2}, 5)});
    messages.push_back({at::full({2, 2}, 7), at::ones({3}, at::kLong)});  // as many bytes
    int64_t moved = 0;
    for (size_t i = 0; i < messages.size(); ++i) {
      if (group.rank() == 0) {
        i % 2 == 0 ? group.send(messages[i], 1, 4) : group.start_send(messages[i], 1, 4).wait();
        continue;
      }
      PendingMessage pending = group.start_receive(0, 4);
      pending.in_rounds();
      const auto came = pending.wait();
      ASSERT_EQ(came.size(), messages[i].size()) << i;
      for (size_t t = 0; t < came.size(); ++t) {
        if (messages[i][t].defined()) {
          moved += static_cast<int64_t>(came[t].nbytes());
          EXPECT_TRUE(at::equal(came[t], messages[i][t])) << i;
        }
      }
      const MessageHeader header = header_of(messages[i]);
      moved += static_cast<int64_t>(header.words().size() * sizeof(int64_t));
      EXPECT_EQ(group.ledger().moved("receive"), moved) << i;
    }
  });
}

/// Over Gloo a send is done when the other rank has asked for it: here while that waits for what
/// comes behind.
TEST(MessagesOverGloo, OfARoundComeBeforeTheyAreWaitedFor) {
  on_transport(2, Transport::gloo, [](Group& group) {
    const Tensor value = at::arange(5.0);
    const auto receive = [&](int tag) {
      PendingMessage pending = group.start_receive(0, tag);
      pending.in_rounds();
      EXPECT_TRUE(at::equal(pending.wait().at(0), value)) << tag;
    };
    for (int round = 0; round < 3; ++round) {
      if (group.rank() == 0) {
        group.send({value}, 1, 1);
        PendingSend second = group.start_send({value}, 1, 2);
        if (round > 0) second.wait();
        group.send({value}, 1, 3);
      } else {
        receive(1);
        receive(3);
        receive(2);
      }
    }
  });
}

TEST(MessagesOverGloo, ARankThatDiesInARoundIsNamed) {
  std::string seen;
  error_of([&] {
    on_transport(2, Transport::gloo, [&](Group& group) {
      const auto receive = [&](int tag) {
        PendingMessage pending = group.start_receive(0, tag);
        pending.in_rounds();
        return pending.wait();
      };
      if (group.rank() == 0) {
        for (const int tag : {1, 2, 1}) group.send({at::ones({3})}, 1, tag);
        group.all_reduce(at::ones({2}));
        fail("the data of rank 0 is broken");
      }
      for (const int tag : {1, 2, 1}) receive(tag);
      group.all_reduce(at::ones({2}));
      seen = error_of([&] { receive(2); });  // which has been asked for
      fail_as(ErrorKind::peer, seen);
    });
  });
  EXPECT_THAT(seen, AllOf(HasSubstr("receive from rank 0 with tag 2 over group all"),
                          HasSubstr("failed on rank 1")));
}

TEST(MessagesOverGloo, ARankThatSendsNothingInARoundIsNamedAfterTheTimeLimit) {
  std::string seen;
  error_of([&] {
    on_transport(
        2, Transport::gloo,
        [&](Group& group) {
          const auto receive = [&](int tag) {
            PendingMessage pending = group.start_receive(1 - group.rank(), tag);
            pending.in_rounds();
            return pending.wait();
          };
          for (const int tag : {1, 2, 1}) {
            group.rank() == 0 ? group.send({at::ones({3})}, 1, tag) : void(receive(tag));
          }
          if (group.rank() == 1) {
            seen = error_of([&] { receive(2); });
            fail("enough");
          }
          error_of([&] { receive(9); });  // stays until the other one has given up
        },
        std::chrono::milliseconds(3500));
  });
  EXPECT_THAT(seen, AllOf(HasSubstr("receive from rank 0 with tag 2 over group all"),
                          HasSubstr("the time limit is 3500 ms, see OSLO_TIMEOUT")));
}

}  // namespace
}  // namespace oslo
