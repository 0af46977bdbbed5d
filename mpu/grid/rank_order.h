#pragma once

#include <string>
#include <string_view>

#include "mpu/base/error.h"

namespace oslo {

/// How global ranks are laid out over the axes, outer to inner. Tensor ranks are adjacent in both.
enum class RankOrder {
  pp_dp_tp,  ///< "pp-dp-tp", the default: the ranks of a stage are adjacent (Megatron, OSLO, LiBai)
  dp_pp_tp,  ///< "dp-pp-tp", Colossal-AI's: the ranks of a model replica are adjacent
};

inline std::string to_string(RankOrder order) {
  return order == RankOrder::pp_dp_tp ? "pp-dp-tp" : "dp-pp-tp";
}

/// The inverse of `to_string`. Throws `Error` for any other text.
inline RankOrder parse_rank_order(std::string_view text) {
  if (text == "pp-dp-tp") {
    return RankOrder::pp_dp_tp;
  }
  OSLO_CHECK(text == "dp-pp-tp", "rank order '", text,
             "' is not known: use 'pp-dp-tp' or 'dp-pp-tp'");
  return RankOrder::dp_pp_tp;
}

}  // namespace oslo
