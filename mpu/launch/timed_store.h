#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace oslo {

/// A store each of whose calls ends. LibTorch's TCPStore waits for its server's answers without a
/// limit, in a socket of its own: a host that is stopped, or a network that is gone, would hold its
/// callers for ever. So a helper thread makes the calls, one after the other, and whoever asked
/// gives up when the time is over. What was given up does not come back: that call and every later
/// one throw an `Error` that names the store and the call, and the thread is left behind with the
/// connection. Any thread may call this.
class TimedStore final : public c10d::Store {
 public:
  using Make = std::function<c10::intrusive_ptr<c10d::Store>()>;

  /// `make` connects; it is called on the helper thread, and this returns when it has. `limit` is
  /// for the answer to each call; where a call waits for a key, for the key, and the answer then
  /// has a little longer, and never less than `limit`. `name` is for errors: "the ranks' store at
  /// 127.0.0.1:29500".
  TimedStore(Make make, std::chrono::milliseconds limit, std::string name);
  ~TimedStore() override;
  TimedStore(const TimedStore&) = delete;
  TimedStore& operator=(const TimedStore&) = delete;

  /// A connection of its own, to the same store.
  c10::intrusive_ptr<c10d::Store> clone() override;

  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }

 private:
  struct Line;
  struct Call;
  template <typename Result, typename Ask>
  Result ask(const std::string& what, std::chrono::milliseconds limit, Ask ask);
  void run(const std::shared_ptr<Call>& call, const std::string& what,
           std::chrono::milliseconds limit);
  std::chrono::milliseconds longer(std::chrono::milliseconds limit) const;

  const std::shared_ptr<Line> line_;
  const Make make_;
};

}  // namespace oslo
