#pragma once

#include <memory>

namespace oslo {

class Group;
class SaveJob;

/// A save that is written while the program goes on. The model may be trained and changed: what is
/// written was copied when the save began.
///
/// Nothing has to be called: the destructor waits until the folder has its name or the save has
/// failed, and then says so on standard error. A program that ends in another way leaves what a
/// killed save leaves, the checkpoint before.
class PendingSave {
 public:
  /// `group` holds all ranks of the save and is used by nothing else meanwhile.
  PendingSave(std::unique_ptr<SaveJob> job, std::shared_ptr<Group> group);
  ~PendingSave();
  PendingSave(const PendingSave&) = delete;
  PendingSave& operator=(const PendingSave&) = delete;

  /// Returns when the checkpoint is in place on all ranks. Throws the same `Error` on every rank
  /// where the save failed on one, the first time that it is called; the folder is then as it was
  /// before. Call it on every rank or on none.
  void wait();

  /// Whether `wait` would return at once.
  bool done() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace oslo
