#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "checkpoint/formats/tensor_file.h"
#include "checkpoint/index/checkpoint_index.h"
#include "checkpoint/regions/region.h"
#include "checkpoint/storage/open_folder.h"

namespace oslo {

/// What a reader did. Its work is in proportion to these, and they are in proportion to the tensors
/// that are asked for and the parts that each of them lies in.
struct ReadCount {
  size_t tensors = 0;  ///< regions that were asked for
  size_t parts = 0;    ///< parts that were compared with them
  size_t files = 0;    ///< files that were opened
  uint64_t bytes = 0;  ///< of contents: of a safetensors file what was copied out of it, of a .bin
                       ///< the records that the tensors lie in
};

/// Fills any region of any tensor of which parts lie in the files of a folder, whatever cut either:
/// what the checkpoint's index says of a tensor (`CheckpointIndex::Tensor`) is where it comes from,
/// a `Region` is what a place wants of it. It knows neither models nor ranks: parameters, buffers
/// and an optimizer's states are tensors alike. Files are opened when the first region needs
/// them, and once.
///
/// Not for several threads at once.
class RegionReader {
 public:
  explicit RegionReader(const std::filesystem::path& folder)
      : RegionReader(std::make_shared<const OpenFolder>(folder)) {}
  explicit RegionReader(std::shared_ptr<const OpenFolder> folder) : folder_(std::move(folder)) {}

  /// A new contiguous CPU tensor with `wanted` of the tensor `name`, of the type that it has in the
  /// files. Throws `Error` naming file and tensor where a file does not have what the index says,
  /// or where the parts leave some of it out or overlap.
  at::Tensor read(const std::string& name, const CheckpointIndex::Tensor& saved,
                  const Region& wanted);

  /// A file of the folder; throws `Error` where it cannot be opened.
  const TensorFile& open(const std::string& file);

  const ReadCount& count() const { return count_; }

 private:
  void copy(const std::string& name, const CheckpointIndex::Tensor& saved,
            const CheckpointIndex::Part& part, const Overlap& overlap, const at::Tensor& into);

  std::shared_ptr<const OpenFolder> folder_;
  std::map<std::string, std::unique_ptr<TensorFile>> files_;
  ReadCount count_;
};

}  // namespace oslo
