#include "mpu/world/agreement.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "mpu/base/digest.h"
#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "mpu/base/told_error.h"

namespace oslo {
namespace {

using Texts = std::vector<std::string>;
using Groups = std::vector<std::vector<int>>;

/// How what a rank says of its step begins.
constexpr char kDone = '+', kFailed = '-';

std::string verdict_of(const std::function<std::string()>& step) {
  try {
    return kDone + step();
  } catch (const std::exception& error) {
    return kFailed + ToldError::of(error).text();
  }
}

/// Throws what the first rank that failed says. Takes the verdicts' first letters off.
Texts results_of(Texts verdicts) {
  const auto failed = std::find_if(verdicts.begin(), verdicts.end(),
                                   [](const std::string& text) { return text[0] == kFailed; });
  if (failed != verdicts.end()) {
    const bool everywhere = std::count(verdicts.begin(), verdicts.end(), *failed) ==
                            static_cast<std::ptrdiff_t>(verdicts.size());
    const ToldError error = ToldError::read(failed->substr(1));
    fail_as(error.kind, everywhere ? "" : c10::str("rank ", failed - verdicts.begin(), ": "),
            error.message);
  }
  for (std::string& text : verdicts) text.erase(0, 1);
  return verdicts;
}

std::vector<int> numbers_below(int size) {
  std::vector<int> numbers(size);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

/// The first rank that has another text than the first of its group.
std::optional<Disagreement> disagreement(const Texts& texts, const Groups& groups) {
  for (const std::vector<int>& ranks : groups) {
    for (const int rank : ranks) {
      if (texts[rank] == texts[ranks[0]]) continue;
      auto [first, other] = first_difference(texts[ranks[0]], texts[rank]);
      return Disagreement{ranks[0], rank, std::move(first), std::move(other)};
    }
  }
  return std::nullopt;
}

Texts gather_texts(Group& group, const std::string& text) {
  const auto size = static_cast<int64_t>(text.size());
  const std::vector<int64_t> sizes = group.exchange(size);
  const at::Tensor bytes = at::empty({size}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  const at::Tensor all = group.all_gather(bytes, 0, sizes);
  const char* next = static_cast<const char*>(all.const_data_ptr());
  Texts texts;
  for (const int64_t length : sizes) {
    texts.emplace_back(next, length);
    next += length;
  }
  return texts;
}

}  // namespace

void agree_on_success(const World& world, const std::string& topic,
                      const std::function<void()>& step) {
  result_of_first(world, topic, [&] {
    step();
    return std::string();
  });
}

std::string result_of_first(const World& world, const std::string& topic,
                            const std::function<std::string()>& step) {
  return world.decide(topic, verdict_of(step),
                      [](const Texts& verdicts) { return results_of(verdicts)[0]; });
}

void agree_on_result(const World& world, const std::string& topic,
                     const std::function<std::string()>& step, const std::string& differ) {
  world.decide(topic, verdict_of(step), [&](const Texts& verdicts) {
    const Texts results = results_of(verdicts);
    const auto other = std::find_if(results.begin(), results.end(),
                                    [&](const std::string& text) { return text != results[0]; });
    OSLO_CHECK(other == results.end(), "rank ", other - results.begin(), " and rank 0 ", differ);
    return "";
  });
}

void agree_on_text(const World& world, const std::string& topic, const std::string& text,
                   const TellDisagreement& tell, const std::vector<std::vector<int>>& groups) {
  if (world.size() == 1) return;
  const auto compared = groups.empty() ? Groups{numbers_below(world.size())} : groups;
  const std::string differ = world.decide(
      topic, std::to_string(digest_of(text)),
      [&](const Texts& digests) { return disagreement(digests, compared) ? "differ" : ""; });
  if (differ.empty()) return;
  world.decide(topic, text, [&](const Texts& texts) {
    const auto seen = disagreement(texts, compared);
    if (seen) fail(tell(*seen));
    return "";
  });
}

void agree_on_text(const World& world, const std::string& what, const std::string& text,
                   const std::string& fix, const std::vector<std::vector<int>>& groups) {
  const auto tell = [&](const Disagreement& seen) {
    return c10::str(what, " differs between ranks: rank ", seen.first, " has ", seen.first_line,
                    ", rank ", seen.rank, " has ", seen.line, "; ", fix);
  };
  agree_on_text(world, what, text, TellDisagreement(tell), groups);
}

void agree_on_text(Group& group, const std::string& text, const TellDisagreement& tell) {
  const std::vector<int64_t> digests = group.exchange(static_cast<int64_t>(digest_of(text)));
  if (std::ranges::count(digests, digests[0]) == std::ssize(digests)) return;
  auto seen = disagreement(gather_texts(group, text), {numbers_below(group.size())});
  if (!seen) return;
  seen->first = group.ranks()[seen->first];
  seen->rank = group.ranks()[seen->rank];
  fail(tell(*seen));
}

}  // namespace oslo
