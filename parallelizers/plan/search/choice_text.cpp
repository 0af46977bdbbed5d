#include "parallelizers/plan/search/choice_text.h"

#include "mpu/base/bytes.h"

#include <c10/util/StringUtil.h>

#include <cmath>
#include <cstdio>

namespace oslo {

std::string compared_text(const DryCost& other, const DryCost& cost) {
  if (!other.possible()) return " cannot be used";
  const double longer = 100 * (other.seconds / cost.seconds - 1);
  char percent[48];
  std::snprintf(percent, sizeof percent, " and take %.1f %% %s", std::abs(longer),
                longer < 0 ? "less" : "longer");
  std::string text = " would move " + byte_text(other.bytes) + percent;
  if (other.gathers > cost.gathers) {
    text += c10::str(" with ", other.gathers - cost.gathers, " more gathers");
  }
  return text;
}

std::string whole_text(const Role& role, bool gathered) {
  if (!role.offers_whole() || role.options.size() == 1) return "its sizes have no cut";
  if (role.shares_work) {
    return "a cut, alone or with a neighbour's, would be gathered or take over a tenth of the step";
  }
  if (gathered) return "every cut would be gathered";
  if (role.large && role.parameter) return "no cut is worth it";
  return "no work to share: whole where a cut is slower or moves more";
}

}  // namespace oslo
