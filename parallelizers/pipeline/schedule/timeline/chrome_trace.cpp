#include "parallelizers/pipeline/schedule/timeline/chrome_trace.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "mpu/base/error.h"

namespace oslo::pipeline {
namespace {

using nlohmann::json;
using Doing = Timeline::Doing;

constexpr std::array<const char*, 4> kPasses = {"forward", "backward", "backward_input",
                                                "backward_weight"};
constexpr std::array<const char*, 5> kDoings = {"compute", "send", "receive", "wait", "reduce"};
constexpr int64_t kMostRanks = 1 << 20;
constexpr double kMicroseconds = 1000;  // of a millisecond

template <typename Kind, size_t count>
bool read_name(const std::array<const char*, count>& names, const std::string& name, Kind& kind) {
  const auto* const found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return false;
  kind = static_cast<Kind>(found - names.begin());
  return true;
}

// An event of a pipeline's step; false for any other.
bool read_event(const json& from, Timeline::Event& event, int64_t& rank) {
  if (!from.is_object() || from.value("ph", "") != "X" || !from.contains("args")) return false;
  const json& args = from["args"];
  if (!args.is_object() || !args.contains("rank") || !args.contains("kind")) return false;
  const std::string kind = args["kind"];
  if (!read_name(kPasses, kind, event.action.pass)) {
    if (!read_name(kDoings, kind, event.doing)) fail("its kind is \"", kind, "\"");
    if (args.contains("of") && !read_name(kPasses, args["of"], event.action.pass)) {
      fail("it is of ", args["of"].dump());
    }
  }
  rank = args["rank"];
  if (rank < 0 || rank >= kMostRanks) fail("its rank is ", rank);
  event.action.stage = args.value("stage", 0);
  event.action.micro_batch = args.value("micro_batch", 0);
  const double begin = from.at("ts");
  const double duration = from.at("dur");
  if (duration < 0) fail("it takes ", duration);
  event.begin = begin / kMicroseconds;
  event.end = (begin + duration) / kMicroseconds;
  return true;
}

}  // namespace

std::string to_chrome_trace(const Timeline& timeline) {
  json events = json::array();
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", 0},
                      {"tid", rank},
                      {"args", {{"name", "rank " + std::to_string(rank)}}}});
    for (const Timeline::Event& event : timeline.ranks[rank]) {
      const char* const pass = kPasses[static_cast<size_t>(event.action.pass)];
      const char* const doing = kDoings[static_cast<size_t>(event.doing)];
      const bool computes = event.doing == Doing::compute;
      json args = {{"rank", rank},
                   {"stage", event.action.stage},
                   {"micro_batch", event.action.micro_batch},
                   {"kind", computes ? pass : doing}};
      if (!computes) args["of"] = pass;
      events.push_back(
          {{"name", (computes ? "" : std::string(doing) + " ") + to_text(event.action)},
           {"cat", doing},
           {"ph", "X"},
           {"ts", event.begin * kMicroseconds},
           {"dur", (event.end - event.begin) * kMicroseconds},
           {"pid", 0},
           {"tid", rank},
           {"args", std::move(args)}});
    }
  }
  return json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump(1) + "\n";
}

Timeline parse_chrome_trace(std::string_view text) {
  const json trace = json::parse(text, nullptr, /*allow_exceptions=*/false);
  OSLO_CHECK(!trace.is_discarded(), "a Chrome trace is JSON, and this is not");
  OSLO_CHECK(trace.is_array() || trace.contains("traceEvents"),
             "a Chrome trace is an array of events, or has \"traceEvents\"; this has neither");
  const json& events = trace.is_array() ? trace : trace["traceEvents"];
  Timeline timeline;
  for (size_t i = 0; i < events.size(); ++i) {
    Timeline::Event event;
    int64_t rank = 0;
    try {
      if (!read_event(events[i], event, rank)) continue;
    } catch (const std::exception& error) {
      fail("event ", i, " of the trace: ", error.what(), "; it is ", events[i].dump());
    }
    if (rank >= static_cast<int64_t>(timeline.ranks.size())) timeline.ranks.resize(rank + 1);
    timeline.ranks[rank].push_back(event);
  }
  OSLO_CHECK(!timeline.ranks.empty(),
             "the trace has no event with args \"rank\" and \"kind\": no step of a pipeline");
  for (auto& of_rank : timeline.ranks) {
    std::stable_sort(of_rank.begin(), of_rank.end(),
                     [](const auto& a, const auto& b) { return a.begin < b.begin; });
  }
  return timeline;
}

}  // namespace oslo::pipeline
