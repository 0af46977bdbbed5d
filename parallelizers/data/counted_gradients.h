#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace oslo {

/// What lies in the gradients of a model that learns from sums over counted elements, since they
/// were last empty (undefined, or set to zero), and what has to be multiplied to make them the mean
/// over all counts of all ranks.
///
/// Gradients of data replicas are averaged by others; here they are only scaled, on each rank, by
/// numbers that all ranks know. With W replicas and a total count of N: sums times W / N, averaged,
/// are the mean.
class CountedGradients : public std::enable_shared_from_this<CountedGradients> {
 public:
  enum class Form : int {
    none,   ///< empty, or of losses that were not counted
    sums,   ///< this rank's sums, not averaged
    mean,   ///< averaged over ranks, the mean over all counts
    whole,  ///< of losses that were scaled by the count of their whole step
  };

  /// `parameters`: those that are trained, this rank's.
  CountedGradients(std::vector<at::Tensor> parameters, int replicas)
      : parameters_(std::move(parameters)), replicas_(replicas), noted_(parameters_.size()) {}

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  int replicas() const { return replicas_; }
  Form form() const { return form_; }
  /// The counts of all ranks that went into them.
  double total() const { return total_; }
  /// Whether there is nothing in them, as far as one can tell without reading them.
  bool undefined() const;

  /// In the backward pass of a sum over `count` elements of all ranks, before any gradient arrives:
  /// scales what is there to go with it, and returns what the sum's gradient is to be multiplied
  /// by. `exchanges`: the pass averages gradients. Several sums of one pass go together where they
  /// are all that there is, or have one count. Throws, the same on all ranks, where what is there
  /// cannot become a mean with it, or where the pass gives gradients to others too (`others` says
  /// to what, else it is empty) and they add up. In autograd::grad, which hands gradients out, what
  /// is there stays: the sum is scaled as the only one of a step.
  double pass_begins(double count, bool exchanges, const std::string& others);
  /// The same for a sum that is scaled by the count of its whole step.
  double whole_step_begins(double step_count);

  /// The same around a step that adds up sums in several passes and exchanges them by itself.
  void step_begins();
  /// `count`: of all ranks, in this step. Behind the exchange.
  void step_ends(double count);
  /// Of a step that did not count, or that scaled its sums by the step's count.
  void step_ends_uncounted(bool whole);

 private:
  struct Noted {
    const void* gradient = nullptr;
    int64_t version = 0;
  };

  bool empty() const;
  void begin();
  void check_goes_together(const std::string& others = {}) const;
  void become_sums();
  void multiply(double factor);
  void note();
  void note_at_end_of_pass();
  double share(double count) const { return count > 0 ? replicas_ / count : 0; }

  std::vector<at::Tensor> parameters_;
  int replicas_;
  Form form_ = Form::none;
  double total_ = 0;
  bool mixed_ = false;  ///< other losses, or other counts, are in them too
  /// Of the last pass: LibTorch's number, whether gradients were empty before, and what it came to.
  int pass_ = -1;
  bool first_ = true;
  double pass_count_ = 0, pass_factor_ = 0;
  std::vector<Noted> noted_;  ///< as the last pass left them
};

}  // namespace oslo
