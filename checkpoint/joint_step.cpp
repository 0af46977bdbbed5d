#include "checkpoint/joint_step.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>

#include "mpu/error.h"

namespace oslo {
namespace {

constexpr char kDone = '+';
constexpr char kFailed = '-';

std::string verdict_of(const std::function<std::string()>& step) {
  try {
    return kDone + step();
  } catch (const c10::Error& error) {
    return kFailed + std::string(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return kFailed + std::string(error.what());
  }
}

}  // namespace

std::vector<std::string> joint_step(const World& world, const std::string& topic,
                                    const std::function<std::string()>& step) {
  std::vector<std::string> verdicts = world.exchange(topic, verdict_of(step));
  const auto failed = std::find_if(verdicts.begin(), verdicts.end(),
                                   [](const std::string& text) { return text[0] == kFailed; });
  if (failed != verdicts.end()) {
    const std::string message = failed->substr(1);
    if (std::all_of(verdicts.begin(), verdicts.end(),
                    [&](const std::string& text) { return text == *failed; })) {
      fail(message);
    }
    fail("rank ", failed - verdicts.begin(), ": ", message);
  }
  for (std::string& text : verdicts) text.erase(0, 1);
  return verdicts;
}

}  // namespace oslo
