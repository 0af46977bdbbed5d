#include "checkpoint/directory/read_together.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <vector>

#include "checkpoint/storage/open_folder.h"
#include "mpu/base/error.h"
#include "mpu/base/told_error.h"

namespace oslo {
namespace {

using Texts = std::vector<std::string>;

/// How what a rank says of a step begins.
constexpr char kDone = '+', kFailed = '-', kReplaced = '~';
/// What rank 0 decides.
constexpr char kGoOn[] = "go on", kAgain[] = "again";

bool any_says(const Texts& texts, char verdict) {
  return std::ranges::any_of(texts, [&](const std::string& text) { return text[0] == verdict; });
}

/// Throws what the first rank that failed says, led by its number unless all say the same.
void throw_failure(const Texts& texts) {
  const auto failed =
      std::ranges::find_if(texts, [](const std::string& text) { return text[0] != kDone; });
  if (failed == texts.end()) return;
  const auto same = [&](const std::string& text) { return text.substr(1) == failed->substr(1); };
  const ToldError error = ToldError::read(failed->substr(1));
  fail_as(error.kind,
          std::ranges::all_of(texts, same) ? "" : c10::str("rank ", failed - texts.begin(), ": "),
          error.message);
}

}  // namespace

void read_together(const World& world, const std::string& topic, const std::filesystem::path& path,
                   const SharedReading& reading) {
  Texts before;  // what the ranks opened the last time; on rank 0
  for (int tries = 1; tries <= kMostReadings; ++tries) {
    const auto opening = [&] {
      try {
        return kDone + reading.open();
      } catch (const std::exception& error) {
        return kFailed + ToldError::of(error).text();
      }
    };
    const std::string same = world.decide(topic, opening(), [&](const Texts& texts) {
      throw_failure(texts);
      const auto other = std::ranges::find_if(
          texts, [&](const std::string& text) { return text != texts.front(); });
      if (other == texts.end()) return kGoOn;
      OSLO_CHECK_AS(file, texts != before, "rank ", other - texts.begin(),
                    " and rank 0 see different checkpoints at ", path.string(),
                    ": one of them was replaced or not copied to every machine");
      before = texts;
      return kAgain;
    });
    if (same == kAgain) continue;
    if (!reading.tells_contents()) {
      const char* found = reading.in_place() ? "+" : "~";
      const std::string still = world.decide(topic, found, [](const Texts& texts) {
        return any_says(texts, kReplaced) ? kAgain : kGoOn;
      });
      if (still == kAgain) continue;
    }
    const auto attempt = [&] {
      try {
        reading.read();
        return std::string(1, reading.is_as_opened() ? kDone : kReplaced);
      } catch (const std::exception& error) {
        return (reading.in_place() ? kFailed : kReplaced) + ToldError::of(error).text();
      }
    };
    const std::string ended = world.decide(topic, attempt(), [&](const Texts& texts) {
      if (any_says(texts, kReplaced)) return kAgain;
      throw_failure(texts);
      return kGoOn;
    });
    if (ended == kGoOn) return;
  }
  fail_as_replaced(path);
}

void read_alone(const std::filesystem::path& path, const SharedReading& reading) {
  for (int tries = 1; tries <= kMostReadings; ++tries) {
    reading.open();
    try {
      reading.read();
      if (reading.is_as_opened()) return;
    } catch (const Error&) {
      if (reading.in_place()) throw;
    }
  }
  fail_as_replaced(path);
}

}  // namespace oslo
