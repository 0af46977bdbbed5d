#pragma once

#include <memory>
#include <vector>

#include "oslo_cpp/config/config_values.h"
#include "parallelizers/memory/recompute/layer_segments.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

/// The segments that the config's 'activation_checkpoint' asks for: the modules that match its
/// patterns, or else the layers of the model (stages/model_layers.h), `every` so many together, in
/// the order in which they are registered. Throws, before anything is changed, where a pattern
/// matches nothing, or one module that matches lies in another, or none of them has a parameter.
std::vector<SegmentLayers> segments_of(const ModelView& model, const ConfigValues& values);

/// What finds them while the model runs.
std::shared_ptr<LayerSegments> layer_segments(const ModelView& model, const ConfigValues& values,
                                              int64_t memory_limit, at::Device device);

}  // namespace oslo
