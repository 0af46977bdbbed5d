#include "checkpoint/folders/folder_plan.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "checkpoint/index/saved_optimizer.h"

namespace oslo {
namespace {

/// Takes a number's digits off the front of a text; 0 where there are none.
uint64_t take_number(std::string_view& text) {
  uint64_t number = 0;
  while (!text.empty() && std::isdigit(static_cast<unsigned char>(text.front())) != 0) {
    number = number * 10 + static_cast<uint64_t>(text.front() - '0');
    text.remove_prefix(1);
  }
  return number;
}

/// "h.2.x" before "h.10.x".
bool comes_before(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    const bool digits = std::isdigit(static_cast<unsigned char>(a.front())) != 0 &&
                        std::isdigit(static_cast<unsigned char>(b.front())) != 0;
    if (digits) {
      const uint64_t left = take_number(a), right = take_number(b);
      if (left != right) return left < right;
      continue;
    }
    if (a.front() != b.front()) return a.front() < b.front();
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  return a.size() < b.size();
}

uint64_t bytes_of(const CheckpointIndex::Tensor& tensor) {
  return static_cast<uint64_t>(c10::multiply_integers(tensor.shape)) *
         c10::elementSize(tensor.dtype);
}

/// The parameter that an optimizer's tensor belongs to; other tensors are their own.
std::string_view parameter_of(std::string_view name) {
  return is_optimizer_key(std::string(name)) ? name.substr(name.find('/', name.find('/') + 1) + 1)
                                             : name;
}

/// For each tensor its stage.
std::map<std::string, int> stages_of(const CheckpointIndex& index, int stages) {
  std::vector<std::pair<std::string, uint64_t>> order;
  uint64_t all = 0;
  for (const auto& [name, tensor] : index.tensors) {
    order.emplace_back(name, bytes_of(tensor));
    all += order.back().second;
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return comes_before(parameter_of(a.first), parameter_of(b.first));
  });
  std::map<std::string, int> result;
  uint64_t before = 0;
  for (const auto& [name, bytes] : order) {
    // By where its middle lies.
    const double place = all == 0 ? 0 : (before + bytes / 2.0) / static_cast<double>(all);
    result[name] = std::min(stages - 1, static_cast<int>(place * stages));
    before += bytes;
  }
  return result;
}

/// The stretches of `cut`, each cut evenly over `ranks`.
CutPtr over(const Cut& cut, int ranks) {
  Cut::Runs runs;
  for (const Cut::Run& run : cut.runs()) {
    int64_t size = 0;
    for (const int64_t piece : run.pieces) size += piece;
    runs.push_back({run.repeat, Cut::balanced(size, ranks).runs().front().pieces});
  }
  return std::make_shared<const Cut>(std::move(runs));
}

/// How a tensor is to be cut over `ranks`: a dimension of -1 where it is not.
std::pair<int64_t, CutPtr> cut_over(const CheckpointIndex::Tensor& tensor, int ranks,
                                    bool cuts_whole_ones) {
  const CheckpointIndex::Cuts& before = tensor.parts.front().cuts;
  if (ranks == 1) return {-1, nullptr};
  if (!before.empty()) return {before.front().dim, over(*before.front().cut, ranks)};
  if (!cuts_whole_ones || tensor.shape.size() < 2) return {-1, nullptr};
  return {0, std::make_shared<const Cut>(Cut::balanced(tensor.shape[0], ranks))};
}

bool anything_is_cut(const CheckpointIndex& index) {
  return std::any_of(index.tensors.begin(), index.tensors.end(),
                     [](const auto& entry) { return !entry.second.parts.front().cuts.empty(); });
}

/// Whether there are files of ranks, rather than one of the whole or several of another program's.
bool lies_in_parts(const CheckpointIndex& index) {
  return std::any_of(index.tensors.begin(), index.tensors.end(), [](const auto& entry) {
    return entry.second.parts.front().file.text().starts_with("pytorch_model_");
  });
}

}  // namespace

FolderPlan plan_merged(const CheckpointIndex& index, std::optional<Format> format) {
  FolderPlan plan;
  plan.merged = true;
  std::vector<FolderPlan::Part> model, optimizer;
  for (const auto& [name, _] : index.tensors) {
    (is_optimizer_key(name) ? optimizer : model).push_back({name, {}});
  }
  for (const FormatNames& names : kFormats) {
    if (format ? names.format != *format : !names.unasked) continue;
    plan.files.push_back({names.model, names.format, model, true});
  }
  // Beside the model's file, which other programs open.
  if (!optimizer.empty()) plan.files.push_back({"optimizer", kDefaultFormat, optimizer});
  return plan;
}

FolderPlan plan_converted(const CheckpointIndex& index, Format format) {
  if (!lies_in_parts(index)) return plan_merged(index, format);
  std::map<std::string, FolderPlan::File> files;
  for (const auto& [name, tensor] : index.tensors) {
    for (const CheckpointIndex::Part& part : tensor.parts) {
      FolderPlan::File& file = files[part.file];
      file.stem = std::filesystem::path(part.file.text()).stem();
      file.format = format;
      file.parts.push_back({name, part.cuts});
    }
  }
  FolderPlan plan;
  plan.mesh = index.mesh;
  for (auto& [_, file] : files) plan.files.push_back(std::move(file));
  return plan;
}

FolderPlan plan_resharded(const CheckpointIndex& index, int tensor, int pipeline, Format format) {
  FolderPlan plan;
  plan.mesh = RankGrid::of_sizes(1, tensor, pipeline, RankOrder::pp_dp_tp);
  for (int stage = 0; stage < pipeline; ++stage) {
    for (int rank = 0; rank < tensor; ++rank) {
      plan.files.push_back({c10::str("pytorch_model_tp_", rank, "_pp_", stage), format, {}, false});
    }
  }
  const bool cuts_whole_ones = !anything_is_cut(index);
  const std::map<std::string, int> stages = stages_of(index, pipeline);
  for (const auto& [name, entry] : index.tensors) {
    const auto first = static_cast<size_t>(stages.at(name)) * static_cast<size_t>(tensor);
    const auto [dim, cut] = cut_over(entry, tensor, cuts_whole_ones);
    if (dim < 0) {
      plan.files[first].parts.push_back({name, {}});
      continue;
    }
    for (int rank = 0; rank < tensor; ++rank) {
      plan.files[first + static_cast<size_t>(rank)].parts.push_back({name, {{dim, rank, cut}}});
    }
  }
  return plan;
}

}  // namespace oslo
