#include "checkpoint/formats/file_format.h"
#include "checkpoint/formats/torch_bin/torch_bin.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

class TorchBinTensors : public TensorFile {
 public:
  explicit TorchBinTensors(const InputFile& file) : file_(file) {}

  std::vector<std::string> keys() const override { return file_.keys(); }
  Entry entry(const std::string& key) const override {
    return {file_.shape(key), file_.dtype(key)};
  }
  /// The tensor's storage is read whole.
  at::Tensor read(const std::string& key) const override { return file_.read(key); }
  at::Tensor read_elements(const std::string&, int64_t, int64_t) const override {
    fail("a .bin file is read tensor by tensor");
  }
  bool reads_parts() const override { return false; }
  uint64_t bytes_read() const override { return file_.bytes_read(); }

 private:
  TorchBinFile file_;
};

std::unique_ptr<TensorFile> open_file(const InputFile& file) {
  return std::make_unique<TorchBinTensors>(file);
}

FileContents write_state(const std::filesystem::path& path, const StateDict& state,
                         const FileNotes&) {
  return write_torch_bin(path, state);
}

FileContents write_stream(const std::filesystem::path& path, const TensorStream& tensors,
                          const FileNotes& notes) {
  return write_torch_bin(path, tensors, notes.ties);
}

}  // namespace

constexpr FileFormat kTorchBinFormat = {.knows_ties = true,
                                        .holds_texts = false,
                                        .open = open_file,
                                        .write = write_state,
                                        .write_stream = write_stream};

}  // namespace oslo
