#include "checkpoint/pretrained/load_pretrained.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/directory/read_together.h"
#include "checkpoint/pretrained/pretrained_folder.h"
#include "checkpoint/pretrained/transposed_matrices.h"
#include "checkpoint/state/model_state.h"
#include "checkpoint/storage/hash.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/door/written_weights.h"

namespace oslo {
namespace {

/// A model and a folder that fit each other, and what of the folder goes where.
class PretrainedMatch {
 public:
  /// Throws `Error` for whatever does not fit, as far as headers and tied values tell.
  PretrainedMatch(const ModelView& model, const std::filesystem::path& path,
                  const PretrainedOptions& options)
      : state_(model),
        folder_(path),
        where_("the checkpoint " + printable_path(path)),
        family_(options.family_of(folder_.config(), printable_path(path / kConfigName))),
        convert_(options.convert()),
        transposed_(transposed_matrices(family_, model, state_)) {
    options.check_loading();
    find_sources(options.ignored());
    for (size_t i = 0; i < sources_.size(); ++i) check(i);
    for (size_t i = 0; i < sources_.size(); ++i) check_ties(i);
  }

  const ModelState& state() const { return state_; }
  std::string identity() const { return folder_.identity(); }
  bool in_place() const { return folder_.in_place(); }
  bool is_as_opened() const { return folder_.is_as_opened(); }

  /// Writes every value into the model.
  PretrainedLoad copy() const {
    const c10::AutoGradMode no_grad(false);
    const BelowDoor below;
    PretrainedLoad load;
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (!state_.tensors[i].here) continue;
      const at::Tensor value = checked_[i].defined() ? checked_[i] : read(i, sources_[i].front());
      at::Tensor to = state_.tensors[i].local;
      const WrittenWeights written(to);
      to.copy_(value);
      ++load.tensors;
      load.bytes += value.nbytes();
    }
    return load;
  }

 private:
  /// A tensor of the files that goes into one of the model.
  struct Source {
    std::string name;  ///< in the files
    bool transposed = false;
  };

  void find_sources(const std::vector<std::string>& ignored) {
    std::unordered_map<std::string, size_t> owners;
    for (const auto& [name, number] : state_.names) owners.emplace(name, number);
    std::unordered_map<std::string, std::string> taken;
    sources_.resize(state_.tensors.size());
    checked_.resize(state_.tensors.size());
    for (const auto& [name, entry] : folder_.tensors()) {
      const std::vector<std::string> candidates = family_.names_for(name);
      const auto wanted = std::find_if(candidates.begin(), candidates.end(),
                                       [&](const auto& each) { return owners.count(each) > 0; });
      if (wanted == candidates.end()) {
        const auto ignores = [&](const std::string& pattern) {
          return matches_pattern(name, pattern);
        };
        OSLO_CHECK(family_.is_spare(name) || std::any_of(ignored.begin(), ignored.end(), ignores),
                   where_, " has '", printable(name),
                   "', the model has not; load it into the model that it is of, or leave it out "
                   "with PretrainedOptions().ignore(\"",
                   printable(name), "\")");
        continue;
      }
      const auto [other, fresh] = taken.emplace(*wanted, name);
      OSLO_CHECK(fresh, where_, " has '", *wanted, "' twice: as '", printable(other->second),
                 "' and as '", printable(name), "'");
      sources_[owners.at(*wanted)].push_back({name, transposed_.count(*wanted) > 0});
    }
  }

  /// Presence, shapes and types; values where a type has some that are none.
  void check(size_t i) {
    const ModelState::Tensor& tensor = state_.tensors[i];
    OSLO_CHECK(!sources_[i].empty(), where_, " has no '", tensor.name,
               "', which the model has; load it into the model that it is of");
    for (const Source& source : sources_[i]) {
      const PretrainedFolder::Entry& entry = folder_.tensors().at(source.name);
      std::vector<int64_t> shape = entry.shape;
      if (source.transposed) std::reverse(shape.begin(), shape.end());
      OSLO_CHECK(shape == tensor.shape && (!source.transposed || shape.size() == 2), where_,
                 " has '", printable(source.name), "' of shape ", c10::IntArrayRef(entry.shape),
                 source.transposed ? ", to be transposed" : "", "; in the model it has ",
                 c10::IntArrayRef(tensor.shape));
      const c10::ScalarType wanted = tensor.local.scalar_type();
      const bool floating = c10::isFloatingType(entry.dtype) && c10::isFloatingType(wanted);
      OSLO_CHECK(entry.dtype == wanted || (convert_ && floating), where_, " has '",
                 printable(source.name), "' as ", entry.dtype, ", the model has it as ", wanted,
                 floating ? "; convert the model with to() first, or load with "
                            "PretrainedOptions().convert(true)"
                          : "");
      // Of the numbers in a file only bools may be wrong: they are looked at before any is written.
      if (entry.dtype == at::kBool && tensor.here) checked_[i] = read(i, source);
    }
  }

  void check_ties(size_t i) const {
    if (sources_[i].size() < 2 || !state_.tensors[i].here) return;
    const Source& first = sources_[i].front();
    const at::Tensor value = read(i, first).contiguous();
    for (const Source& other : sources_[i]) {
      const at::Tensor same = read(i, other).contiguous();
      OSLO_CHECK(
          value.nbytes() == same.nbytes() && value.scalar_type() == same.scalar_type() &&
              (value.nbytes() == 0 ||
               std::memcmp(value.const_data_ptr(), same.const_data_ptr(), value.nbytes()) == 0),
          "the model ties '", printable(first.name), "' and '", printable(other.name), "', ",
          where_, " has different values for them");
    }
  }

  /// This rank's part of the model's tensor `i`.
  at::Tensor read(size_t i, const Source& source) const {
    const ModelState::Tensor& tensor = state_.tensors[i];
    return folder_.read(source.name, Region(tensor.shape, tensor.layout), source.transposed);
  }

  ModelState state_;
  PretrainedFolder folder_;
  std::string where_;
  PretrainedFamily family_;
  bool convert_;
  std::set<std::string> transposed_;          ///< names of the model's matrices
  std::vector<std::vector<Source>> sources_;  ///< of each tensor of the model
  std::vector<at::Tensor> checked_;           ///< values that were looked at already
};

}  // namespace

PretrainedLoad load_pretrained(const ModelView& model, const std::filesystem::path& folder,
                               const PretrainedOptions& options) {
  std::optional<PretrainedMatch> match;
  PretrainedLoad load;
  const auto open = [&] {
    match.emplace(model, folder, options);
    for (const ModelState::Tensor& tensor : match->state().tensors) {
      OSLO_CHECK(!tensor.layout && tensor.stages.empty(), "'", tensor.name,
                 "' is cut over ranks: load_pretrained needs what initialize returned, "
                 "load_pretrained(parallel, folder), on every rank");
    }
    return std::string();
  };
  read_alone(folder, {open, nullptr, [&] { return match->in_place(); },
                      [&] { load = match->copy(); }, [&] { return match->is_as_opened(); }});
  return load;
}

PretrainedLoad load_pretrained(const ModelView& model, const MPU& mpu,
                               const std::filesystem::path& folder,
                               const PretrainedOptions& options) {
  std::optional<PretrainedMatch> match;
  const auto open = [&] {
    match.emplace(model, folder, options);
    return sha256(match->identity());
  };
  // What was opened stays open, so that nothing can be replaced after this, but written into.
  PretrainedLoad load;
  read_together(mpu.world(), "load_pretrained", folder,
                {open, [] { return false; }, [&] { return match->in_place(); },
                 [&] { load = match->copy(); }, [&] { return match->is_as_opened(); }});
  return load;
}

}  // namespace oslo
