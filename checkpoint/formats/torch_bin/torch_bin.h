#pragma once

#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/formats/tensors/state_dict.h"
#include "checkpoint/formats/tensors/tensor_stream.h"
#include "checkpoint/formats/torch_bin/stored_zip.h"
#include "checkpoint/storage/content_hash.h"

namespace oslo {

/// The most bytes of a file's program: twice what 200,000 tensors take.
inline constexpr uint64_t kLargestPickle = 100'000'000;

/// Writes `state` to `path` as Python's `torch.save(dict)` would: the default
/// `torch.load(path)` (weights_only=True) opens it as a dict of name to tensor. Names that share a
/// storage at one dtype share it in the file and after loading; of a storage only the range that
/// the tensors reach is written. Equal states give equal files.
///
/// Throws `Error` naming file and tensor for quantized, sparse or meta tensors, for more of them
/// than a reader takes, or a failed write.
/// Returns size and hash of the file, which may still be on its way to the disk.
FileContents write_torch_bin(const std::filesystem::path& path, const StateDict& state);

/// The same of tensors that come one by one, each of which goes when it is written. `ties` are
/// second names of some of them, which share their storage.
FileContents write_torch_bin(const std::filesystem::path& path, const TensorStream& tensors,
                             const std::map<std::string, std::string>& ties);

/// Reads a file of `write_torch_bin` or of Python's `torch.save(model.state_dict(), path)`, any
/// device it came from, onto the CPU: sizes, strides and sharing as saved; `requires_grad` and
/// hooks are not restored.
///
/// The pickle inside is a program, so only the few operations and names that a state_dict needs
/// are understood; everything else is refused by name, and nothing is ever imported or called.
/// Throws `Error` naming the file, and the tensor or storage where there is one, for that, for a
/// cut file, a record that does not have its CRC-32 or is compressed, a missing storage, sizes that
/// do not fit it, the pre-2020 format without zip, a TorchScript archive, or a value that is no
/// tensor. Memory: the file, and at most half a gigabyte for the program inside.
StateDict read_torch_bin(const std::filesystem::path& path);

/// The same file read tensor by tensor: opening it runs the program inside and reads no tensor.
/// Everything is refused as above, a record's CRC-32 when a tensor in it is read. Not for several
/// threads at once.
class TorchBinFile {
 public:
  explicit TorchBinFile(const std::filesystem::path& path) : TorchBinFile(InputFile(path)) {}
  explicit TorchBinFile(const InputFile& file);

  /// In the order of the program.
  std::vector<std::string> keys() const;
  /// Like `read`, throw `Error` naming file and key where it is absent.
  std::vector<int64_t> shape(const std::string& key) const { return entry(key).sizes().vec(); }
  c10::ScalarType dtype(const std::string& key) const { return entry(key).scalar_type(); }
  /// The tensor over its storage, which is read as a whole and kept until that of another one is
  /// read. Not to be written.
  at::Tensor read(const std::string& key) const;
  /// Bytes of the records that were read.
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  const at::Tensor& entry(const std::string& key) const;

  std::string file_;
  StoredZip archive_;
  StateDict outline_;  // tensors over storages without memory
  std::map<const c10::StorageImpl*, std::string> records_;
  mutable const c10::StorageImpl* last_ = nullptr;
  mutable at::Tensor last_contents_;
  mutable uint64_t bytes_read_ = 0;
};

}  // namespace oslo
