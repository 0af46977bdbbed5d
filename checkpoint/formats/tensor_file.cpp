#include "checkpoint/formats/tensor_file.h"

namespace oslo {

TensorFile::TensorFile(const InputFile& file) {
  if (file.path().extension() == ".bin") {
    bin_.emplace(file);
  } else {
    safetensors_.emplace(file);
  }
}

std::vector<std::string> TensorFile::keys() const {
  return bin_ ? bin_->keys() : safetensors_->keys();
}

TensorFile::Entry TensorFile::entry(const std::string& key) const {
  if (bin_) return {bin_->shape(key), bin_->dtype(key)};
  return {safetensors_->shape(key), safetensors_->dtype(key)};
}

void TensorFile::visit(const std::string& key, const Visit& visit) const {
  if (bin_) {
    visit(bin_->read(key));
  } else {
    safetensors_->visit(key, visit);
  }
}

const SafetensorsMetadata& TensorFile::metadata() const {
  static const SafetensorsMetadata none;
  return bin_ ? none : safetensors_->metadata();
}

}  // namespace oslo
