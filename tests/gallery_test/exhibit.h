#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

// A program that a published system computed wrongly, without a word, written for one device.
namespace gallery {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

/// A model and its loss. It knows nothing of ranks: what it notes is what its author would log.
class Program : public torch::nn::Module {
 public:
  /// The loss of some rows of a batch.
  virtual Tensor loss(const Tensors& rows) = 0;

  /// Of the whole batch before it is divided, what any rank may know.
  virtual void look_at(const Tensors& /*batch*/) {}

  /// Between backward and the optimizer's step; whether there is to be one.
  virtual bool after_backward() { return true; }

  /// What DistributedDataParallel calls.
  Tensor forward(const Tensors& rows) { return loss(rows); }

  /// A result with a row for each of the rows that the loss was called with.
  void note(const std::string& name, const Tensor& result) {
    if (torch::GradMode::is_enabled()) notes[name].push_back(result.detach());
  }

  std::map<std::string, Tensors> notes;
  std::map<std::string, double> logged;  ///< numbers of the program's own, after a step

  /// What the program multiplies its loss with before backward.
  double scale = 1;

  /// Into how many parts a step divides its batch, whose losses are averaged.
  int parts = 1;
};

/// How the ranks share the work.
struct Layout {
  int data = 1, tensor = 1, pipeline = 1;
  const char* kind = "1f1b";  ///< the schedule of the pipeline
  int zero = 0;               ///< the stage of ZeRO, over the data ranks
  std::string later = {};     ///< the feature of a later version, where it needs one
  std::string config = {};    ///< with that feature, in place of the sizes in OSLO's words
  int size() const { return data * tensor * pipeline; }
};

std::string name_of(const Layout& layout);

/// A number that follows from the stated inputs: "loss", "norm", "gradient of w", or what the
/// program notes or logs, of a step.
struct Right {
  std::string of;
  Tensor value;
  int step = 0;
};

struct Exhibit {
  const char* id;
  const char* sources;  ///< where it was wrong
  std::function<std::shared_ptr<Program>()> make;
  std::function<Tensors(int step)> batch;
  std::vector<Right> right = {};
  int steps = 3;
  torch::Dtype dtype = torch::kFloat64;
  double tolerance = 1e-9;  ///< relative to the largest element
  /// The loss is no mean over rows: one device, too, computes a part of the batch at a time.
  bool by_parts = false;
  /// Steps with SGD where AdamW would magnify a rounding.
  bool sgd = false;
  double clip = 0.5;
  /// Layers are left out in some steps: DistributedDataParallel has to be told.
  bool skips_layers = false;
  /// On ranks without stages, no operator may gather a whole value.
  bool gathers_nothing = false;
  std::vector<Layout> layouts = {};  ///< empty: all of `ordinary_layouts`
  /// Layouts that a later version brings: refused by name until then, tested from then on.
  std::vector<Layout> later = {};
  std::string plan = {};  ///< the config's "plan", where the bug needs a certain one
};

/// Sequences cut over `ranks`.
Layout sequence(int ranks);
/// A stage of ZeRO over 2 data ranks, each of so many.
Layout zero(int stage, int tensor = 1, int pipeline = 1);

/// Tensor 2, 3, 4, data 2, pipeline 2 (with a split backward, too), all three at once, and ZeRO's
/// stages.
const std::vector<Layout>& ordinary_layouts();

/// The program on one device beside the same on ranks that are threads: loss, notes, every
/// gradient, their norm, the weights after each step; and the numbers that are right.
void expect_right(const Exhibit& exhibit, const Layout& layout);

/// All that are compared so, in the order of docs/gallery.md.
const std::vector<Exhibit>& exhibits();

// What the files of exhibits add.
std::vector<Exhibit> losses();
std::vector<Exhibit> norms();
std::vector<Exhibit> cuts();
std::vector<Exhibit> graphs();
std::vector<Exhibit> attentions();

/// `make` of an exhibit whose program is a class without arguments.
template <typename P>
std::shared_ptr<Program> made() {
  return std::make_shared<P>();
}

}  // namespace gallery
