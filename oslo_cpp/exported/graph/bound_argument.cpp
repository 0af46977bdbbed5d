#include "oslo_cpp/exported/graph/bound_argument.h"

#include <ATen/ScalarOps.h>

#include "mpu/base/error.h"

namespace oslo::exported {
namespace {

const c10::IValue& of_part(const BoundArgument::Part& part, const Values& values) {
  return part.slot < 0 ? part.constant : values[part.slot];
}

}  // namespace

c10::IValue BoundArgument::value(const Values& values) const {
  const auto number = [&](const Part& part) { return of_part(part, values).toScalar(); };
  switch (form_) {
    case Form::constant:
    case Form::value:
      return of_part(parts_.front(), values);
    case Form::real_number:
      return number(parts_.front()).toDouble();
    case Form::wrapped_number: {
      // What Python's arithmetic does with a number: its type gives way to the other operand's.
      at::Tensor wrapped = c10::scalar_to_tensor(number(parts_.front()));
      wrapped.unsafeGetTensorImpl()->set_wrapped_number(true);
      return wrapped;
    }
    case Form::integers: {
      c10::List<int64_t> list;
      list.reserve(parts_.size());
      for (const Part& part : parts_) list.push_back(number(part).toLong());
      return list;
    }
    case Form::reals: {
      c10::List<double> list;
      list.reserve(parts_.size());
      for (const Part& part : parts_) list.push_back(number(part).toDouble());
      return list;
    }
    case Form::truths: {
      c10::List<bool> list;
      list.reserve(parts_.size());
      for (const Part& part : parts_) list.push_back(number(part).toBool());
      return list;
    }
    case Form::tensors: {
      c10::List<at::Tensor> list;
      list.reserve(parts_.size());
      for (const Part& part : parts_) list.push_back(of_part(part, values).toTensor());
      return list;
    }
    case Form::optional_tensors: {
      c10::List<std::optional<at::Tensor>> list;
      list.reserve(parts_.size());
      for (const Part& part : parts_) {
        const c10::IValue& tensor = of_part(part, values);
        list.push_back(tensor.isNone() ? std::nullopt : std::optional(tensor.toTensor()));
      }
      return list;
    }
  }
  fail("an argument without a form");
}

const c10::IValue* BoundArgument::constant() const {
  return form_ == Form::constant ? &parts_.front().constant : nullptr;
}

std::vector<int> BoundArgument::slots() const {
  std::vector<int> found;
  for (const Part& part : parts_) {
    if (part.slot >= 0) found.push_back(part.slot);
  }
  return found;
}

}  // namespace oslo::exported
