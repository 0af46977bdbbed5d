#include "checkpoint/formats/tensor_file.h"

#include <ATen/core/Tensor.h>

#include "mpu/base/error.h"

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

at::Tensor TensorFile::read(const std::string& key) const {
  return bin_ ? bin_->read(key) : safetensors_->read(key);
}

at::Tensor TensorFile::read_elements(const std::string& key, int64_t first, int64_t count) const {
  OSLO_CHECK(safetensors_, "a .bin file is read tensor by tensor");
  return safetensors_->read_elements(key, first, count);
}

const SafetensorsMetadata& TensorFile::metadata() const {
  static const SafetensorsMetadata none;
  return bin_ ? none : safetensors_->metadata();
}

}  // namespace oslo
