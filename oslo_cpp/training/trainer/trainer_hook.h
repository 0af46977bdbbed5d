#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "oslo_cpp/training/trainer/training.h"

namespace oslo {

/// What a Trainer calls between the parts of its loop, on every rank: Colossal-AI's BaseHook.
/// Derive from it, and write the functions that you need.
///
///     before_train
///       before_train_epoch, after_train_iter (each batch), after_train_epoch
///       before_test, after_test_iter (each batch), after_test
///       after_epoch
///     after_train
///
/// In `after_train_epoch` and `after_test` the means of that part are in `training.metrics`. Hooks
/// with a smaller priority are called first, equal ones in the order of the list.
class TrainerHook {
 public:
  virtual ~TrainerHook() = default;

  /// Its name in a checkpoint, where its state is kept.
  virtual std::string name() const = 0;
  virtual int priority() const { return 5; }
  /// Whether it reads the outputs of batches: otherwise nobody keeps them.
  virtual bool reads_outputs() const { return false; }

  virtual void before_train(Training&) {}
  virtual void after_train(Training&) {}
  virtual void before_train_epoch(Training&) {}
  virtual void after_train_iter(Training&, const TrainedBatch&) {}
  virtual void after_train_epoch(Training&) {}
  virtual void before_test(Training&) {}
  virtual void after_test_iter(Training&, const TrainedBatch&) {}
  virtual void after_test(Training&) {}
  virtual void after_epoch(Training&) {}

  /// What it goes on from in a resumed run; null: nothing.
  virtual nlohmann::json state_dict() const { return nullptr; }
  virtual void load_state_dict(const nlohmann::json&) {}
};

using TrainerHooks = std::vector<std::shared_ptr<TrainerHook>>;

}  // namespace oslo
