#include <ATen/ATen.h>
#include <caffe2/serialize/versions.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/formats/tensors/tensor_bytes.h"
#include "checkpoint/formats/torch_bin/stored_zip.h"
#include "checkpoint/formats/torch_bin/torch_bin.h"
#include "checkpoint/formats/torch_bin/unpickler.h"
#include "checkpoint/storage/file_io.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"
#include "mpu/base/text.h"

namespace oslo {
namespace {

/// Of the records that hold a word or a number.
constexpr uint64_t kLongestWord = 32;

/// Throws unless the archive is of a version that this LibTorch reads, too.
void check_version(const StoredZip& archive, const std::string& file) {
  const char* record = archive.contains(".data/version") ? ".data/version" : "version";
  OSLO_CHECK_AS(file, archive.contains(record), file,
                " has no record version: torch.save did not write it");
  const std::string text = archive.read_text(record, kLongestWord);
  uint64_t version = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  const std::string_view rest(stop, text.data() + text.size() - stop);
  OSLO_CHECK_AS(file, error == std::errc() && (rest.empty() || rest == "\n"), file,
                " is damaged: its version '", printable(text), "' is no number");
  OSLO_CHECK_AS(file,
                version >= caffe2::serialize::kMinSupportedFileFormatVersion &&
                    version <= caffe2::serialize::kMaxSupportedFileFormatVersion,
                file, " has format version ", version, ", this LibTorch reads ",
                caffe2::serialize::kMinSupportedFileFormatVersion, " to ",
                caffe2::serialize::kMaxSupportedFileFormatVersion);
}

/// Throws unless the file begins as one of torch.save does.
const InputFile& checked_magic(const InputFile& opened) {
  const std::string file = printable_path(opened.path());
  std::string magic(std::min<uint64_t>(opened.size(), 4), '\0');
  opened.read(magic.data(), magic.size(), 0);
  OSLO_CHECK_AS(
      file, magic.substr(0, 2) != "\x80\x02", file,
      " is in torch.save's format from before 2020; save it again with a current PyTorch");
  OSLO_CHECK_AS(file, magic == "PK\x03\x04", file, " is not a file of torch.save (no zip archive)");
  return opened;
}

void check_archive(const StoredZip& archive, const std::string& file) {
  OSLO_CHECK_AS(file, archive.contains("data.pkl"), file,
                " has no record data.pkl: torch.save did not write it");
  OSLO_CHECK_AS(file, !archive.contains("constants.pkl"), file,
                " is a TorchScript archive, not a state_dict");
  OSLO_CHECK_AS(
      file,
      !archive.contains("byteorder") || archive.read_text("byteorder", kLongestWord) == "little",
      file, " was saved on a big-endian machine; save it again on a little-endian one");
  check_version(archive, file);
}

/// Runs the program of an archive. `storage_of` gives the storage of a record of so many bytes, and
/// is asked once for each.
StateDict run_program(
    const StoredZip& archive, const std::string& file,
    const std::function<c10::Storage(const std::string& record, uint64_t bytes)>& storage_of) {
  std::map<std::string, c10::Storage, std::less<>> loaded;
  uint64_t total = 0;
  const auto load_storage = [&](std::string_view key, uint64_t bytes) {
    const auto known = loaded.find(key);
    if (known != loaded.end()) {
      OSLO_CHECK_AS(file, known->second.nbytes() == bytes, file, ": storage '", printable(key),
                    "' has ", bytes, " bytes in one place and ", known->second.nbytes(),
                    " in another");
      return known->second;
    }
    const std::string record = c10::str("data/", key);
    OSLO_CHECK_AS(file, archive.contains(record), file, " lacks the storage '", printable(key),
                  "' of ", bytes, " bytes: it is damaged");
    const uint64_t held = archive.size(record);
    OSLO_CHECK_AS(file, held == bytes, file, ": storage '", printable(key), "' should have ", bytes,
                  " bytes and has ", held);
    // Records may lie over each other, but what torch.save wrote cannot outgrow the file.
    total += bytes;
    OSLO_CHECK_AS(file, total <= archive.file_size(), file, ": its storages claim ", total,
                  " bytes in a file of ", archive.file_size(), ": it is damaged");
    return loaded.emplace(key, storage_of(record, bytes)).first->second;
  };
  const std::string program = archive.read_text("data.pkl", kLargestPickle);
  return unpickle_state_dict(program, file, load_storage);
}

at::Tensor read_record(const StoredZip& archive, const std::string& record) {
  const at::Tensor data = at::empty({static_cast<int64_t>(archive.size(record))}, at::kByte);
  archive.read(record, data.mutable_data_ptr());
  return data;
}

}  // namespace

StateDict read_torch_bin(const std::filesystem::path& path) try {
  const std::string file = printable_path(path);
  const StoredZip archive(checked_magic(InputFile(path)));
  check_archive(archive, file);
  return run_program(archive, file, [&](const std::string& record, uint64_t) {
    return read_record(archive, record).storage();
  });
} catch (const c10::Error& error) {
  fail_as(ErrorKind::file, printable_path(path),
          " cannot be read: ", first_line(error.what_without_backtrace()));
} catch (const std::bad_alloc&) {
  fail_as(ErrorKind::file, printable_path(path), " takes more memory than there is");
}

TorchBinFile::TorchBinFile(const InputFile& file) try
    : file_(printable_path(file.path())), archive_(checked_magic(file)) {
  check_archive(archive_, file_);
  outline_ = run_program(archive_, file_, [&](const std::string& record, uint64_t bytes) {
    c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(bytes),
                         at::DataPtr(nullptr, at::Device(at::kCPU)), nullptr, false);
    records_.emplace(storage.unsafeGetStorageImpl(), record);
    return storage;
  });
} catch (const c10::Error& error) {
  fail_as(ErrorKind::file, printable_path(file.path()),
          " cannot be read: ", first_line(error.what_without_backtrace()));
} catch (const std::bad_alloc&) {
  fail_as(ErrorKind::file, printable_path(file.path()), " takes more memory than there is");
}

std::vector<std::string> TorchBinFile::keys() const {
  std::vector<std::string> keys;
  for (const auto& [name, _] : outline_) keys.push_back(name);
  return keys;
}

const at::Tensor& TorchBinFile::entry(const std::string& key) const {
  const at::Tensor* tensor = outline_.find(key);
  OSLO_CHECK_AS(file, tensor != nullptr, file_, " has no tensor '", printable(key), "' among its ",
                outline_.size());
  return *tensor;
}

at::Tensor TorchBinFile::read(const std::string& key) const try {
  const at::Tensor& outline = entry(key);
  const c10::StorageImpl* storage = outline.storage().unsafeGetStorageImpl();
  if (last_ != storage) {
    last_ = nullptr;
    last_contents_ = at::Tensor();
    last_contents_ = read_record(archive_, records_.at(storage));
    bytes_read_ += last_contents_.nbytes();
    last_ = storage;
  }
  if (outline.scalar_type() == at::kBool) {
    check_bool_bytes(last_contents_.const_data_ptr(), last_contents_.nbytes(),
                     c10::str(file_, ": tensor '", printable(key), "'"));
  }
  return at::empty({0}, outline.options())
      .set_(last_contents_.storage(), outline.storage_offset(), outline.sizes(), outline.strides());
} catch (const c10::Error& error) {
  fail_as(ErrorKind::file, file_, ": tensor '", printable(key),
          "' cannot be read: ", first_line(error.what_without_backtrace()));
}

}  // namespace oslo
