#pragma once

#include <nlohmann/json.hpp>

#include "oslo_cpp/config/config_schema.h"

namespace oslo {

/// Turns what may be written in several ways into the one that checks and readers know: a list of
/// stages that is a text, "[0]*6 + [1]*7", becomes an array. Throws `ConfigError` with the path for
/// a text that is none.
void write_out_lists(const ConfigKey& schema, nlohmann::ordered_json& document);

/// LiBai's block of sizes as its train.py has it, all three written and 1, is what a file has where
/// nobody chose anything, and LiBai then trains in data parallel over all ranks:
/// `data_parallel_size` becomes null, which is inferred. A size that is written without the other
/// two stays what was asked for. For documents, not for overrides: those are asked for.
void forget_libai_defaults(nlohmann::ordered_json& document);

}  // namespace oslo
