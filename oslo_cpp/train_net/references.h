#pragma once

#include <nlohmann/json.hpp>

#include "oslo_cpp/config/config_schema.h"

namespace oslo {

/// What becomes of a reference to a key that the document does not have.
enum class Unresolved {
  refused,  ///< throws `ConfigError`, naming the nearest key
  left_out  ///< the key is left out: of a file that others complete
};

/// The document with its references replaced. A text that stands for a number, a list or a flag and
/// is the path of another key, has that key's value, as LiBai's Python files have it:
///
///     "pipeline_num_layers": "model.cfg.hidden_layers"
///     "pipeline_num_layers": "2 * model.cfg.hidden_layers"
///
/// In "model.cfg" and "dataloader", whose values may be texts, a text is one where there is such a
/// key. A reference may name another one; throws `ConfigError` where they go in a circle.
nlohmann::ordered_json with_references(const ConfigKey& schema,
                                       const nlohmann::ordered_json& document,
                                       Unresolved unresolved);

}  // namespace oslo
