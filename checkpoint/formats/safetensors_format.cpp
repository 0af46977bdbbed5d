#include "checkpoint/formats/file_format.h"
#include "checkpoint/formats/safetensors.h"

namespace oslo {
namespace {

class SafetensorsTensors : public TensorFile {
 public:
  explicit SafetensorsTensors(const InputFile& file) : file_(file) {}

  std::vector<std::string> keys() const override { return file_.keys(); }
  Entry entry(const std::string& key) const override {
    return {file_.shape(key), file_.dtype(key)};
  }
  at::Tensor read(const std::string& key) const override { return file_.read(key); }
  at::Tensor read_elements(const std::string& key, int64_t first, int64_t count) const override {
    return file_.read_elements(key, first, count);
  }
  bool reads_parts() const override { return true; }
  const SafetensorsMetadata& metadata() const override { return file_.metadata(); }

 private:
  SafetensorsFile file_;
};

std::unique_ptr<TensorFile> open_file(const InputFile& file) {
  return std::make_unique<SafetensorsTensors>(file);
}

/// Hugging Face's way to say that a tensor has a second name is a text of that name.
SafetensorsMetadata metadata_of(const FileNotes& notes) {
  SafetensorsMetadata metadata = notes.texts;
  metadata.insert(notes.ties.begin(), notes.ties.end());
  return metadata;
}

FileContents write_state(const std::filesystem::path& path, const StateDict& state,
                         const FileNotes& notes) {
  return write_safetensors(path, state, metadata_of(notes));
}

FileContents write_stream(const std::filesystem::path& path, const TensorStream& tensors,
                          const FileNotes& notes) {
  return write_safetensors(path, tensors, metadata_of(notes));
}

}  // namespace

constexpr FileFormat kSafetensorsFormat = {.knows_ties = false,
                                           .holds_texts = true,
                                           .open = open_file,
                                           .write = write_state,
                                           .write_stream = write_stream};

}  // namespace oslo
