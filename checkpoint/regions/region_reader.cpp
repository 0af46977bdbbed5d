#include "checkpoint/regions/region_reader.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "checkpoint/formats/file_format.h"
#include "checkpoint/formats/tensors/tensor_bytes.h"
#include "checkpoint/regions/file_overlap.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

struct Source {
  const CheckpointIndex::Part* part;
  Overlap overlap;
};

Region region_of(const CheckpointIndex::Tensor& saved, const CheckpointIndex::Part& part) {
  Region region(saved.shape);
  for (const auto& [dim, rank, cut] : part.cuts) region.cut(dim, *cut, rank);
  return region;
}

/// Whether two parts hold some element of a wanted region both.
bool meet(const Overlap& a, const Overlap& b) {
  for (size_t d = 0; d < a.dims.size(); ++d) {
    // Pieces ascend in the wanted region's dimension.
    const auto& left = a.dims[d];
    const auto& right = b.dims[d];
    bool meets = false;
    for (size_t i = 0, j = 0; !meets && i < left.size() && j < right.size();) {
      const int64_t left_end = left[i].to + left[i].size, right_end = right[j].to + right[j].size;
      meets = left[i].to < right_end && right[j].to < left_end;
      (left_end <= right_end ? i : j) += 1;
    }
    if (!meets) return false;
  }
  return true;
}

/// The parts that `wanted` is made of: one, where one has all of it. Throws where they do not cover
/// it exactly once.
std::vector<Source> sources_of(const CheckpointIndex::Tensor& saved, const Region& wanted,
                               const std::string& where, size_t& compared) {
  const int64_t needed = wanted.numel();
  std::vector<Source> sources;
  int64_t found = 0;
  for (const CheckpointIndex::Part& part : saved.parts) {
    ++compared;
    Overlap overlap = overlap_of(region_of(saved, part), wanted);
    const int64_t count = overlap.numel();
    if (count == 0) continue;
    if (count == needed) return {{&part, std::move(overlap)}};
    found += count;
    sources.push_back({&part, std::move(overlap)});
  }
  bool once = found == needed;
  for (size_t i = 0; once && i < sources.size(); ++i) {
    for (size_t j = 0; once && j < i; ++j) once = !meet(sources[i].overlap, sources[j].overlap);
  }
  OSLO_CHECK_AS(file, once, where, " lies in ", saved.parts.size(), " parts that ",
                found < needed ? "leave some of it out" : "overlap", ": the index is damaged");
  return sources;
}

}  // namespace

const TensorFile& RegionReader::open(const std::string& file) {
  std::unique_ptr<TensorFile>& opened = files_[file];
  if (!opened) {
    opened = open_tensor_file(folder_->open(file));
    ++count_.files;
  }
  return *opened;
}

at::Tensor RegionReader::read(const std::string& name, const CheckpointIndex::Tensor& saved,
                              const Region& wanted) try {
  const c10::AutoGradMode no_grad(false);
  ++count_.tensors;
  const std::string where =
      c10::str("the checkpoint ", printable_path(folder_->path()), ": '", printable(name), "'");
  at::Tensor into = at::empty(wanted.sizes(), at::TensorOptions(saved.dtype).device(at::kCPU));
  if (into.numel() == 0) return into;
  for (const Source& source : sources_of(saved, wanted, where, count_.parts)) {
    copy(name, saved, *source.part, source.overlap, into);
  }
  if (saved.dtype == at::kBool) check_bool_bytes(into.const_data_ptr(), into.nbytes(), where);
  return into;
} catch (const c10::Error& error) {
  // No memory for it.
  fail_as(ErrorKind::file, "the checkpoint ", printable_path(folder_->path()), ": '",
          printable(name), "' cannot be read: ", error.what_without_backtrace());
}

void RegionReader::copy(const std::string& name, const CheckpointIndex::Tensor& saved,
                        const CheckpointIndex::Part& part, const Overlap& overlap,
                        const at::Tensor& into) {
  const TensorFile& file = open(part.file);
  std::vector<int64_t> shape = saved.shape;
  for (const auto& [dim, rank, cut] : part.cuts) shape[dim] = cut->local_size(rank);
  if (saved.transposed) std::reverse(shape.begin(), shape.end());
  const TensorFile::Entry there = file.entry(name);
  OSLO_CHECK_AS(file, there.shape == shape && there.dtype == saved.dtype,
                printable_path(folder_->path() / part.file.text()), ": '", printable(name), "' is ",
                there.dtype, " ", c10::IntArrayRef(there.shape), ", the index says ", saved.dtype,
                " ", c10::IntArrayRef(shape));
  const uint64_t before = file.bytes_read();
  copy_from_file(file, name, overlap, saved.transposed, into);
  count_.bytes += file.reads_parts()
                      ? static_cast<uint64_t>(overlap.numel()) * c10::elementSize(saved.dtype)
                      : file.bytes_read() - before;
}

}  // namespace oslo
