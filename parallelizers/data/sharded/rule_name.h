#pragma once

namespace oslo {

/// By which the ledger tells what moves for weights that replicas keep parts of.
constexpr char kZeroRule[] = "zero";

}  // namespace oslo
