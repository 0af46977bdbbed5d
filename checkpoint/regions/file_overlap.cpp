#include "checkpoint/regions/file_overlap.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace oslo {
namespace {

constexpr int64_t kBlockBytes = int64_t{1} << 20;

struct SavedTensor {
  const TensorFile& file;
  const std::string& name;
  c10::IntArrayRef shape;
  int64_t element_bytes;
};

/// Dimensions before `dim` are walked through: `first` is where the elements of the ones from there
/// begin in the file, `into` has the dimensions from there. Only `overlap.dims[dim]` and those
/// after it count.
void copy_rows(const SavedTensor& saved, const Overlap& overlap, size_t dim, int64_t first,
               const at::Tensor& into) {
  const c10::IntArrayRef rest = saved.shape.slice(dim + 1);
  const int64_t row = c10::multiply_integers(rest);
  const int64_t row_bytes = std::max<int64_t>(1, row * saved.element_bytes);
  const bool walks = row_bytes > kBlockBytes && !rest.empty();
  const int64_t at_once = walks ? 1 : std::max<int64_t>(1, kBlockBytes / row_bytes);
  for (const Overlap::Piece& piece : overlap.dims[dim]) {
    for (int64_t done = 0; done < piece.size; done += at_once) {
      const int64_t begin = first + (piece.from + done) * row;
      if (walks) {
        copy_rows(saved, overlap, dim + 1, begin, into.select(0, piece.to + done));
        continue;
      }
      const int64_t count = std::min(at_once, piece.size - done);
      std::vector<int64_t> sizes = rest.vec();
      sizes.insert(sizes.begin(), count);
      Overlap block;
      block.dims.assign(overlap.dims.begin() + static_cast<int64_t>(dim), overlap.dims.end());
      block.dims.front() = {{0, piece.to + done, count}};
      copy_overlap(saved.file.read_elements(saved.name, begin, count * row).view(sizes), into,
                   block);
    }
  }
}

}  // namespace

void copy_from_file(const TensorFile& file, const std::string& name, const Overlap& overlap,
                    bool transposed, const at::Tensor& into) {
  if (overlap.empty()) return;
  Overlap as_in_file = overlap;
  at::Tensor target = into;
  if (transposed) {
    std::swap(as_in_file.dims[0], as_in_file.dims[1]);
    target = into.transpose(0, 1);
  }
  const TensorFile::Entry there = file.entry(name);
  if (!file.reads_parts() || there.shape.empty()) {
    copy_overlap(file.read(name), target, as_in_file);
    return;
  }
  const auto size = static_cast<int64_t>(c10::elementSize(there.dtype));
  copy_rows({file, name, there.shape, size}, as_in_file, 0, 0, target);
}

}  // namespace oslo
