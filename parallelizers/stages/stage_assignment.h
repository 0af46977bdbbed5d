#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallelizers/modules/model_view.h"

namespace torch::nn {
class Module;
template <typename Impl>
class ModuleHolder;
}  // namespace torch::nn

namespace oslo {

/// The pipeline stages that a program gives to modules of its model before `initialize`, as LiBai's
/// models do:
///
///     oslo::InitializeOptions how;
///     for (int i = 0; i < layers; ++i) how.stages.set_layer_idx(model->blocks->ptr(i), i);
///     how.stages.set_pipeline_stage_id(model->embeddings, 0);
///     how.stages.set_pipeline_stage_id(model->head, -1);     // the last stage
///
/// What lies beneath a module goes with it, unless it was given a stage of its own; of several
/// calls for one module the last counts. A call overrides the automatic rule, stage ids and
/// balancing, and patterns of the config override it. Keeps what it is given alive. A module that
/// the model does not have, and stages and layers that there are not, are refused by `initialize`,
/// which knows them.
///
/// A model's class may say the same by itself (oslo_cpp/initialize/class_stages.h), and a module by
/// its `layer_idx` (parallelizers/modules/layer_idx.h). Calls override the class, and the class the
/// modules, for all that lies beneath.
class StageAssignment {
 public:
  /// Who says it, from the weakest.
  enum class By { layer_idx, model_class, options };

  /// `stage` from 0, or -1 for the last one.
  StageAssignment& set_pipeline_stage_id(const std::shared_ptr<torch::nn::Module>& module,
                                         int stage);
  template <typename Impl>
  StageAssignment& set_pipeline_stage_id(const torch::nn::ModuleHolder<Impl>& module, int stage) {
    return set_pipeline_stage_id(std::shared_ptr<torch::nn::Module>(module.ptr()), stage);
  }
  /// Of a parameter or buffer alone.
  StageAssignment& set_pipeline_stage_id(const at::Tensor& tensor, int stage);

  /// The stage that layer `layer_idx` of the model has (LiBai's `get_layer_stage_id`), by the rule
  /// or by stage ids; from 0, or -1 for the last one. Layers are those of model_layers.h.
  StageAssignment& set_layer_idx(const std::shared_ptr<torch::nn::Module>& module, int layer_idx);
  template <typename Impl>
  StageAssignment& set_layer_idx(const torch::nn::ModuleHolder<Impl>& module, int layer_idx) {
    return set_layer_idx(std::shared_ptr<torch::nn::Module>(module.ptr()), layer_idx);
  }
  /// Of a parameter or buffer alone.
  StageAssignment& set_layer_idx(const at::Tensor& tensor, int layer_idx);

  /// Adds what `other` says, said by `by`.
  StageAssignment& add(const StageAssignment& other, By by);

  bool empty() const { return notes_.empty(); }

  /// Paths of modules, parameters and buffers in `model`, by who says it from the weakest, of each
  /// outer modules before those within them, and the stage of each, of a pipeline of `stages` whose
  /// layers have the stages `layers`. A module that is registered twice is there under both paths.
  /// Throws, naming the call, for what the model does not have, and for a stage or a layer that
  /// there is not.
  std::vector<std::pair<std::string, int>> stages(const ModelView& model, int stages,
                                                  const std::vector<int>& layers) const;

  /// What ranks must have been given alike.
  std::string to_string(const ModelView& model) const;

 private:
  /// A module or tensor, and where it goes.
  struct Note {
    std::shared_ptr<torch::nn::Module> module;  ///< null: it is a tensor
    at::Tensor tensor;
    int number = 0;      ///< a stage, or the layer whose stage it is
    bool layer = false;  ///< which of the two
    By by = By::options;

    std::vector<std::string> paths_in(const ModelView& model) const;
    /// Who says it, for messages: "InitializeOptions::stages: ".
    const char* who() const;
    /// The call, for messages: "set_layer_idx(head, 24)".
    std::string to_string(const std::string& path) const;
    int stage(const std::string& path, int stages, const std::vector<int>& layers) const;
  };
  StageAssignment& add(Note note);

  std::vector<Note> notes_;
};

/// What the modules of `model` say by their `layer_idx`.
StageAssignment layer_indices(const ModelView& model);

}  // namespace oslo
