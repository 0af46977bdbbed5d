#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "oslo_cpp/config/config_schema.h"

namespace oslo {

/// The tree of what `oslo train` reads (docs/train.md): LiBai's dialect of a Config, and beside it,
/// in LiBai's names, what a trainer needs.
ConfigKey train_schema();

/// The names of the optimizers and schedules that a config may name.
std::vector<std::string> optimizer_names();
std::vector<std::string> rate_schedule_names();

/// Of such a document what `initialize` is told: a document of LiBai's dialect of a Config.
nlohmann::ordered_json parallel_part(const nlohmann::ordered_json& document);

}  // namespace oslo
