#include "parallelizers/pipeline/crossing/read_message.h"

#include <ATen/ATen.h>

#include <c10/core/GradMode.h>

#include <bit>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/access.h"

namespace oslo {
namespace {

/// What the first word of an entry says; the rest is its content.
enum class Kind : int64_t { tensor, list, truth, integer, real, complex, nothing };

using Words = std::vector<int64_t>;

at::Tensor entry(Kind kind, Words words) {
  words.insert(words.begin(), static_cast<int64_t>(kind));
  return at::tensor(words, at::kLong);
}

at::Tensor entry_of(const at::Tensor& tensor) {
  const bool records = value_of(tensor).local.requires_grad();
  Words words{static_cast<int64_t>(tensor.scalar_type()), records ? 1 : 0};
  words.insert(words.end(), tensor.sizes().begin(), tensor.sizes().end());
  return entry(Kind::tensor, std::move(words));
}

void add(const c10::IValue& result, std::vector<at::Tensor>& message) {
  const auto bits = [](double number) { return std::bit_cast<int64_t>(number); };
  if (result.isTensor()) {
    message.push_back(result.toTensor().defined() ? entry_of(result.toTensor())
                                                  : entry(Kind::nothing, {}));
  } else if (result.isTensorList()) {
    const auto tensors = result.toTensorVector();
    message.push_back(entry(Kind::list, {static_cast<int64_t>(tensors.size())}));
    for (const at::Tensor& tensor : tensors) message.push_back(entry_of(tensor));
  } else if (result.isBool()) {
    message.push_back(entry(Kind::truth, {result.toBool() ? 1 : 0}));
  } else if (result.isInt()) {
    message.push_back(entry(Kind::integer, {result.toInt()}));
  } else if (result.isDouble()) {
    message.push_back(entry(Kind::real, {bits(result.toDouble())}));
  } else if (result.isComplexDouble()) {
    const auto number = result.toComplexDouble();
    message.push_back(entry(Kind::complex, {bits(number.real()), bits(number.imag())}));
  } else {
    fail("an operator that reads elements of a value that a pipeline stage holds gave a ",
         result.tagKind(), ", which cannot be sent to the other stages; compute with tensors");
  }
}

/// Differentiable where the owner's is (rows by a mask are): both sides of a crossing then expect
/// its gradient. No leaf, which could not be written in place.
at::Tensor shape_from(const at::Tensor& entry) {
  const auto* words = entry.const_data_ptr<int64_t>();
  const Words sizes(words + 3, words + entry.numel());
  const at::Tensor shape =
      at::empty(sizes, at::TensorOptions(static_cast<at::ScalarType>(words[1])).device(at::kMeta));
  if (words[2] == 0 || !c10::GradMode::is_enabled()) return shape;
  return shape.set_requires_grad(true).clone();
}

}  // namespace

std::vector<at::Tensor> message_of_read(const std::vector<c10::IValue>& results) {
  std::vector<at::Tensor> message;
  for (const c10::IValue& result : results) add(result, message);
  return message;
}

std::vector<c10::IValue> read_of_message(const std::vector<at::Tensor>& message) {
  std::vector<c10::IValue> results;
  for (size_t i = 0; i < message.size(); ++i) {
    const auto* words = message[i].const_data_ptr<int64_t>();
    const auto number = [&](int64_t word) { return std::bit_cast<double>(words[word]); };
    switch (static_cast<Kind>(words[0])) {
      case Kind::tensor:
        results.emplace_back(shape_from(message[i]));
        break;
      case Kind::list: {
        std::vector<at::Tensor> tensors;
        for (int64_t left = words[1]; left > 0; --left) tensors.push_back(shape_from(message[++i]));
        results.emplace_back(std::move(tensors));
        break;
      }
      case Kind::truth:
        results.emplace_back(words[1] != 0);
        break;
      case Kind::integer:
        results.emplace_back(words[1]);
        break;
      case Kind::real:
        results.emplace_back(number(1));
        break;
      case Kind::complex:
        results.emplace_back(c10::complex<double>(number(1), number(2)));
        break;
      case Kind::nothing:
        results.emplace_back(at::Tensor());
        break;
    }
  }
  return results;
}

}  // namespace oslo
