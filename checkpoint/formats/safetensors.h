#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/formats/tensors/state_dict.h"
#include "checkpoint/formats/tensors/tensor_stream.h"
#include "checkpoint/storage/file_io.h"

namespace oslo {

/// Free text beside the tensors of a safetensors file.
using SafetensorsMetadata = std::map<std::string, std::string>;

/// Writes `state` to `path` in the safetensors format (huggingface/safetensors, 0.x): eight bytes
/// of header length, a JSON header, the bytes of every tensor. Tensors come wide elements first and
/// then by name, as the reference writer orders them, so that each is aligned; equal states give
/// equal files. `metadata` gets "format": "pt" unless it says otherwise, which is what Hugging
/// Face's loaders ask for. Strided, empty, conjugated and CUDA tensors are written by value; two
/// names of one tensor are written twice, because the format knows no ties.
///
/// Throws `Error` naming file and tensor for a dtype the format lacks (quantized, complex128), a
/// sparse tensor, one without data (meta), the name "__metadata__", or a failed write. Memory: one
/// tensor at a time where a copy is needed. Returns size and hash of the file, which may still be
/// on its way to the disk.
FileContents write_safetensors(const std::filesystem::path& path, const StateDict& state,
                               SafetensorsMetadata metadata = {});

/// The same file of tensors that come one by one, each of which goes when it is written.
FileContents write_safetensors(const std::filesystem::path& path, const TensorStream& tensors,
                               SafetensorsMetadata metadata = {});

/// A safetensors file whose header is read and checked: every tensor's shape, dtype and bytes fit
/// each other, the bytes of all tensors lie end to end without a hole or an overlap, and they fill
/// the file exactly. Tensors are read one by one on demand, on the CPU. Opening takes time and
/// memory in proportion to the header, which has at most 100 MB: about five times as much, and no
/// tree of it.
class SafetensorsFile {
 public:
  /// Throws `Error` naming the file, the tensor and the numbers for anything above that fails.
  explicit SafetensorsFile(std::filesystem::path path)
      : SafetensorsFile(InputFile(std::move(path))) {}
  explicit SafetensorsFile(InputFile file);

  /// The names in the order of their bytes in the file.
  const std::vector<std::string>& keys() const { return keys_; }
  bool contains(const std::string& key) const { return entries_.count(key) > 0; }
  /// Shape and dtype of a tensor; like `read`, throw `Error` naming file and key if it is absent.
  const std::vector<int64_t>& shape(const std::string& key) const { return entry(key).shape; }
  c10::ScalarType dtype(const std::string& key) const { return entry(key).dtype; }
  /// A new contiguous CPU tensor with the contents.
  at::Tensor read(const std::string& key) const;

  /// `count` elements from the one of number `first`, in the order of their bytes, as a new tensor
  /// of one dimension. The tensor must have them.
  at::Tensor read_elements(const std::string& key, int64_t first, int64_t count) const;
  const SafetensorsMetadata& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  struct Entry {
    std::vector<int64_t> shape;
    c10::ScalarType dtype;
    uint64_t begin;  // bytes, counted from the end of the header
    uint64_t end;
  };

  void add(std::string key, const nlohmann::json& value);
  const Entry& entry(const std::string& key) const;
  void check_layout(uint64_t data_bytes);

  InputFile file_;
  uint64_t data_start_ = 0;
  std::vector<std::string> keys_;
  std::unordered_map<std::string, Entry> entries_;
  SafetensorsMetadata metadata_;
};

/// All tensors of a file, in the order of `SafetensorsFile::keys`.
StateDict read_safetensors(const std::filesystem::path& path);

}  // namespace oslo
