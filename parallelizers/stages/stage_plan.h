#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallelizers/modules/model_view.h"
#include "parallelizers/stages/stage_assignment.h"
#include "parallelizers/stages/stage_map.h"
#include "parallelizers/stages/stage_patterns.h"

namespace oslo {

/// What a user says of pipeline stages.
struct StageWishes {
  int stages = 1;
  std::optional<int> layers;            ///< how many the model has ("pipeline_num_layers")
  std::optional<std::vector<int>> ids;  ///< a stage a layer ("custom_pipeline_stage_id")
  StagePatterns patterns;               ///< they override all else
  StageAssignment assigned = {};        ///< what it gives modules overrides ids and the rule
  std::string ids_from = "'custom_pipeline_stage_id'";  ///< where the ids stand, for messages
  std::string balanced_by = {};  ///< "time": by what the ids were found; empty: they were given
};

/// The stage of every parameter and buffer of a model.
struct StagePlan {
  struct Layer {
    std::string path;
    int automatic = 0;  ///< by LiBai's rule
    int actual = 0;     ///< as the user says; of what patterns place, where its first parameter is
  };
  int stages = 1;
  std::vector<Layer> layers;
  StageMap tensors;
  std::string why;  ///< "by LiBai's rule", "by 'custom_pipeline_stage_id', then by patterns"

  /// What ranks must have planned alike.
  std::string to_string(const ModelView& model) const;
};

/// Divides the layers (model_layers.h) over the stages, by LiBai's rule or as the user says.
/// What is no layer goes with those of the innermost module around it that has some: what is
/// registered before them with the first one, what comes later with the one before it, and heads,
/// poolers and final norms, by their names, with the last one. Embeddings are on the first stage. A
/// tensor of several names has the stages of all of them.
///
/// Throws, naming the numbers, for fewer layers than stages where nothing else says more, for
/// another number of layers or stage ids than the model has layers, for stages that there are not,
/// and for a pattern that nothing matches.
StagePlan plan_stages(const ModelView& model, const StageWishes& wishes);

}  // namespace oslo
