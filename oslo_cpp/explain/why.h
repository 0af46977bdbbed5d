#pragma once

#include <string>

#include "mpu/base/ledger.h"
#include "oslo_cpp/explain/explanation.h"

namespace oslo {

/// Why the operator `call` asked for a collective, in a sentence's words.
std::string why_moved(const CountedCall& counted, const ExplainedCall& call);

}  // namespace oslo
