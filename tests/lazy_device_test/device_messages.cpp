// Messages over a carrier whose sends wait for their receivers, as NCCL's do: the first ones of two
// ranks, and their order with the streams.
#include "mpu/transport/device_messages.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <utility>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/transport/backends/staged_backend.h"
#include "mpu/transport/counted_process_group.h"
#include "tests/lazy_device_test/late_tensors.h"
#include "tests/support/error_of.h"
#include "tests/support/shared_memory_group.h"

namespace oslo {
namespace {

using at::Tensor;
using test::error_of;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

/// Ranks that wait for each other forever end by it.
constexpr std::chrono::milliseconds kLimit = std::chrono::seconds(20);

/// Two ranks' communicator is made by their first message; each waits there for the other.
class MadeByFirstMessage final : public c10d::Backend {
 public:
  MadeByFirstMessage(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : Backend(rank, size), store_(std::move(store)) {}
  c10::intrusive_ptr<c10d::Work> send(std::vector<Tensor>& tensors, int to, int tag) override {
    return communicator(to).send(tensors, other(to), tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<Tensor>& tensors, int from, int tag) override {
    return communicator(from).recv(tensors, other(from), tag);
  }
  void abort() override {
    if (made_) made_->abort();
  }

 private:
  /// Of two, 0 and 1.
  int other(int peer) const { return peer > getRank() ? 1 : 0; }
  c10d::Backend& communicator(int peer) {
    if (!made_) {
      const int own = 1 - other(peer);
      made_ = c10::make_intrusive<StagedBackend>(
          own, 2, make_shared_memory_backend(store_, own, 2, test::shm_options("pair", kLimit)));
    }
    return *made_;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Backend> made_;
};

/// `body` on each rank, a thread.
void on_ranks(int ranks, const std::function<void(DeviceMessages&, int, c10d::Store&)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto errors = test::on_threads(ranks, [&](int rank) {
    DeviceMessages messages(store, rank, kLimit, [=](const DeviceMessages::StorePtr& own) {
      return c10::make_intrusive<MadeByFirstMessage>(own, rank, ranks);
    });
    body(messages, rank, *store);
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

Tensor numbers(int64_t count, int64_t first) {
  return at::arange(first, first + count, at::kLong);
}

Tensor received(DeviceMessages& messages, int64_t count, int from) {
  Tensor tensor = at::empty({count}, at::kLong);
  messages.receive(tensor, from)->wait();
  return tensor;
}

TEST(DeviceMessages, RanksOfARingMayAllSendFirst) {
  on_ranks(3, [](DeviceMessages& messages, int rank, c10d::Store&) {
    const int next = (rank + 1) % 3, previous = (rank + 2) % 3;
    const auto sent = messages.send(numbers(5, 10 * rank), next);
    EXPECT_TRUE(at::equal(received(messages, 5, previous), numbers(5, 10 * previous)));
    sent->wait();
  });
}

TEST(DeviceMessages, TwoRanksMayBothSendFirst) {
  on_ranks(2, [](DeviceMessages& messages, int rank, c10d::Store&) {
    const int other = 1 - rank;
    for (int i = 0; i < 3; ++i) messages.send(numbers(100'000, i + 10 * rank), other);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::equal(received(messages, 100'000, other), numbers(100'000, i + 10 * other)));
    }
  });
}

TEST(DeviceMessages, ComeInTheirOrderFromBeforeTheRanksMetAndFromAfterwards) {
  on_ranks(2, [](DeviceMessages& messages, int rank, c10d::Store& store) {
    if (rank == 0) {
      const auto first = messages.send(numbers(1, 0), 1);
      for (int64_t i = 1; i < 4; ++i) messages.send(numbers(i + 1, i), 1);
      EXPECT_FALSE(first->isCompleted());
      store.set("sent", "");
      first->wait();
      messages.send(numbers(5, 4), 1)->wait();
    } else {
      store.wait({"sent"});
      for (int64_t i = 0; i < 5; ++i) {
        EXPECT_TRUE(at::equal(received(messages, i + 1, 0), numbers(i + 1, i)));
      }
    }
  });
}

TEST(DeviceMessages, ARankThatDoesNotComeIsNamed) {
  const auto never = [](const DeviceMessages::StorePtr&) -> DeviceMessages::BackendPtr {
    ADD_FAILURE() << "there is nobody to meet";
    return nullptr;
  };
  DeviceMessages messages(c10::make_intrusive<c10d::HashStore>(), 0, std::chrono::milliseconds(20),
                          never);
  const auto sent = messages.send(numbers(1, 0), 1);
  constexpr const char* kLate = "rank 1 has not come to its first message with this";
  EXPECT_THAT(error_of([&] { sent->wait(); }), HasSubstr(kLate));
  EXPECT_THAT(error_of([&] { messages.send(numbers(1, 0), 1); }), HasSubstr(kLate));
  EXPECT_THAT(error_of([&] { received(messages, 1, 1); }), HasSubstr(kLate));
}

/// While it waits for the other rank, and while NCCL does, which nothing ends.
TEST(DeviceMessages, AnAbortedGroupWaitsForNobody) {
  constexpr const char* kBroken = "messages with rank 1 were broken off";
  std::promise<void> asked, end;
  const auto waits = [&asked, ended = end.get_future().share()](
                         const DeviceMessages::StorePtr&) -> DeviceMessages::BackendPtr {
    asked.set_value();
    ended.wait();
    fail("the test is over");
  };
  for (const bool other_comes : {false, true}) {
    const DeviceMessages::StorePtr store = c10::make_intrusive<c10d::HashStore>();
    CountedProcessGroup group(store, 0, {0, 1}, kLimit);
    group.set_device_messages(std::make_unique<DeviceMessages>(store, 0, kLimit, waits));
    DeviceMessages& messages = *group.device_messages();
    const auto lost = messages.send(numbers(1, 0), 1);
    if (other_comes) {
      store->set("messages/0/1/here/1", "");
      asked.get_future().wait();
    }
    group.abort();
    EXPECT_THAT(error_of([&] { lost->wait(); }), HasSubstr(kBroken));
    EXPECT_THAT(error_of([&] { messages.send(numbers(1, 0), 1); }), HasSubstr(kBroken));
    EXPECT_THAT(error_of([&] { received(messages, 1, 1); }), HasSubstr(kBroken));
  }
  end.set_value();
}

TEST(DeviceMessages, NoneFollowAnAbort) {
  on_ranks(2, [](DeviceMessages& messages, int rank, c10d::Store& store) {
    const int other = 1 - rank;
    const auto sent = messages.send(numbers(5, 10 * rank), other);
    EXPECT_TRUE(at::equal(received(messages, 5, other), numbers(5, 10 * other)));
    sent->wait();
    store.set(std::to_string(rank), "");
    store.wait({std::to_string(other)});
    messages.abort();
    EXPECT_THAT(error_of([&] { messages.send(numbers(5, 0), other); }), HasSubstr("broken off"));
    EXPECT_THAT(error_of([&] { received(messages, 5, other); }), HasSubstr("broken off"));
  });
}

TEST(DeviceMessages, AreOrderedWithTheCallersStreamAlsoWhereAThreadSendsThem) {
  on_ranks(2, [](DeviceMessages& messages, int rank, c10d::Store&) {
    const c10::StreamGuard stream(
        c10::impl::VirtualGuardImpl(c10::kPrivateUse1).getStreamFromGlobalPool(test::kLazy));
    const int other = 1 - rank;
    for (int64_t i = 0; i < 3; ++i) {
      const auto sent = messages.send(test::late(numbers(20, i + 100 * rank)), other);
      const Tensor came = at::empty({20}, at::device(test::kLazy).dtype(at::kLong));
      messages.receive(came, other)->wait();
      EXPECT_TRUE(at::equal(test::seen(came), numbers(20, i + 100 * other)));
      sent->wait();
    }
  });
}

}  // namespace
}  // namespace oslo
