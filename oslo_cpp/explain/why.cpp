#include "oslo_cpp/explain/why.h"

#include <string_view>

#include "parallelizers/placement/layout/purpose.h"

namespace oslo {
namespace {

struct Reason {
  const char* purpose;
  const char* forward;
  const char* backward;
};

constexpr const char* kGathered = "gradient of what was gathered for each rank's own part";

constexpr Reason kReasons[] = {
    {purpose::kReduce, "partial sum ends: each rank has added up its part", "a partial sum"},
    {purpose::kScatter, "partial sum ends: each rank keeps a part, as planned",
     "gradient of a sum of which each rank kept a part"},
    {purpose::kCopy, "a value that every rank uses for its own part",
     "gradient of what every rank used for its own part"},
    {purpose::kSplit, "a value that each rank uses its part of",
     "gradient of what each rank used its part of"},
    {purpose::kPlanned, "as planned: gathered for the weight's part", kGathered},
    {purpose::kGather, "a step of the operator's rule joins the parts", kGathered},
    {purpose::kRecut, "parts of it get other owners", "gradient of parts that got other owners"},
    {purpose::kRing, "keys and values go round", "gradient of keys and values that went round"},
    {purpose::kWrite, "written into a tensor that lies otherwise",
     "gradient of what was written into a tensor that lies otherwise"},
};

}  // namespace

std::string why_moved(const CountedCall& counted, const ExplainedCall& call) {
  const Asker& asker = counted.asker;
  const std::string_view asked = asker.purpose;
  if (asked == purpose::kGather && !asker.backward && !call.gathers.empty()) {
    return "gathers: " + call.gathers.back();
  }
  for (const Reason& reason : kReasons) {
    if (asked == reason.purpose) return asker.backward ? reason.backward : reason.forward;
  }
  return asker.backward ? "a step of the rule's backward" : "a step of the operator's rule";
}

}  // namespace oslo
