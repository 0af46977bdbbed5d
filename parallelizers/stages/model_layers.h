#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallelizers/modules/model_view.h"

namespace oslo {

/// The paths of the modules that count as the layers of a pipeline, in the order in which they are
/// registered: the members of the outermost lists of blocks (`h.0`, `h.1`, ...; of an encoder and a
/// decoder those of both), where a block is one of at least two of a class that have modules
/// inside. Of a model without such lists, the modules that its root is made of: those with
/// parameters, a container's own in its place. `expected`, the user's number of layers, chooses
/// where only the other of the two has as many.
std::vector<std::string> pipeline_layers(const ModelView& model, std::optional<int> expected = {});

/// Whether `path` is `module`, or lies beneath it.
bool lies_in(const std::string& path, const std::string& module);

}  // namespace oslo
