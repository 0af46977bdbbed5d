// From the words of a file to an argument: which kinds may stand where a schema asks for a type.
#include <ATen/core/jit_type.h>
#include <c10/util/complex.h>

#include "mpu/base/error.h"
#include "oslo_cpp/exported/file/codes.h"
#include "oslo_cpp/exported/graph/bound_argument.h"

namespace oslo::exported {
namespace {

using Form = BoundArgument::Form;
using Part = BoundArgument::Part;
using c10::IValue;
using c10::TypeKind;

/// The operator's type at this place, optional or not.
c10::TypePtr plain_type(const c10::TypePtr& type) {
  if (type->kind() != TypeKind::OptionalType) return type;
  return type->castRaw<c10::OptionalType>()->getElementType();
}

/// The kind of a list's elements; nothing for what is no list.
std::optional<TypeKind> element_kind(const c10::TypePtr& type) {
  if (type->kind() != TypeKind::ListType) return std::nullopt;
  return type->castRaw<c10::ListType>()->getElementType()->kind();
}

bool is_number(const std::string& kind) {
  return kind == "as_int" || kind == "as_float" || kind == "as_bool" || kind == "as_complex" ||
         kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool";
}

IValue constant_number(const std::string& kind, const Document& value) {
  if (kind == "as_int") return value.integer();
  if (kind == "as_float") return value.real();
  if (kind == "as_bool") return value.truth();
  if (kind == "as_complex") {
    return c10::complex<double>(value.member("real").real(), value.member("imag").real());
  }
  fail(value.where(), ": '", kind, "' is no number");
}

/// A number of a size's kind: a name, or a constant beside names.
Part symbolic_part(const Document& written, const Names& names) {
  const auto [kind, value] = written.choice();
  if (kind != "as_name") return {-1, constant_number(kind, value)};
  const Names::Entry& entry = names.find(value.text(), value.where());
  OSLO_CHECK(entry.kind != ValueKind::tensor, value.where(), ": '", value.text(),
             "' is a tensor, and a number is needed");
  return {entry.slot};
}

Part number_part(const std::string& kind, const Document& value, const Names& names) {
  if (kind.starts_with("as_sym_")) return symbolic_part(value, names);
  return {-1, constant_number(kind, value)};
}

Part tensor_part(const Document& written, const Names& names) {
  const Document name = written.member("name");
  const Names::Entry& entry = names.find(name.text(), written.where());
  OSLO_CHECK(entry.kind == ValueKind::tensor, written.where(), ": '", name.text(), "' is a",
             entry.kind == ValueKind::integer ? "n " : " ", kind_name(entry.kind),
             ", and a tensor is needed");
  return {entry.slot};
}

Part optional_tensor_part(const Document& written, const Names& names) {
  const auto [kind, value] = written.choice();
  if (kind == "as_none") return {};
  OSLO_CHECK(kind == "as_tensor", value.where(), ": a tensor or none is needed");
  return tensor_part(value, names);
}

/// A constant where nothing of it changes from run to run.
BoundArgument settled(Form form, std::vector<Part> parts) {
  BoundArgument argument(form, std::move(parts));
  if (!argument.slots().empty()) return argument;
  return BoundArgument(argument.value({}));
}

/// Parts of a list for elements of the kind that the operator takes.
std::optional<Form> list_form(TypeKind elements) {
  switch (elements) {
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return Form::integers;
    case TypeKind::FloatType:
      return Form::reals;
    case TypeKind::BoolType:
      return Form::truths;
    default:
      return std::nullopt;
  }
}

/// Whether numbers of `kind` lose nothing as elements of `form`.
bool fits(const std::string& kind, Form form) {
  const bool real = kind == "as_float" || kind == "as_sym_float" || kind == "as_complex";
  const bool truth = kind == "as_bool" || kind == "as_sym_bool";
  if (form == Form::integers) return !real && !truth;
  if (form == Form::reals) return !truth && kind != "as_complex";
  return truth;
}

class Binder {
 public:
  Binder(const Document& written, const c10::Argument& parameter, const Names& names)
      : names_(names),
        parameter_(parameter),
        type_(plain_type(parameter.type())),
        where_(written.where()) {}

  BoundArgument bind(const std::string& kind, const Document& value) const {
    if (kind == "as_none") return none();
    if (kind == "as_tensor") return tensor(tensor_part(value, names_));
    if (kind == "as_optional_tensor") {
      const Part part = optional_tensor_part(value, names_);
      return part.slot < 0 ? none() : tensor(part);
    }
    if (kind == "as_tensors" || kind == "as_optional_tensors") return tensors(kind, value);
    if (is_number(kind)) return number(kind, value);
    if (kind == "as_ints") return list("as_int", value);
    if (kind == "as_floats") return list("as_float", value);
    if (kind == "as_bools") return list("as_bool", value);
    if (kind == "as_sym_ints") return list("as_sym_int", value);
    if (kind == "as_sym_floats") return list("as_sym_float", value);
    if (kind == "as_sym_bools") return list("as_sym_bool", value);
    if (kind == "as_string") return constant(TypeKind::StringType, IValue(value.text()));
    if (kind == "as_device") return constant(TypeKind::DeviceObjType, device_of(value));
    const auto code = [&](auto known) {
      return constant(TypeKind::IntType, static_cast<int64_t>(known));
    };
    if (kind == "as_scalar_type") return code(scalar_type_of(value));
    if (kind == "as_memory_format") return code(memory_format_of(value));
    if (kind == "as_layout") return code(layout_of(value));
    fail(where_, ": arguments of the kind '", kind, "' are not supported");
  }

 private:
  [[noreturn]] void refuse(const std::string& kind) const {
    fail(where_, ": it is given as '", kind, "', and the operator takes a ",
         parameter_.type()->str());
  }

  BoundArgument none() const {
    if (parameter_.type()->kind() != TypeKind::OptionalType) refuse("as_none");
    return BoundArgument(IValue());
  }

  BoundArgument constant(TypeKind taken, IValue value) const {
    if (type_->kind() != taken) refuse(std::string(value.tagKind()));
    return BoundArgument(std::move(value));
  }

  BoundArgument tensor(const Part& part) const {
    if (type_->kind() != TypeKind::TensorType) refuse("as_tensor");
    return {Form::value, {part}};
  }

  BoundArgument tensors(const std::string& kind, const Document& value) const {
    if (type_->kind() != TypeKind::ListType) refuse(kind);
    const c10::TypePtr element = type_->castRaw<c10::ListType>()->getElementType();
    const bool optional = element->kind() == TypeKind::OptionalType;
    if (plain_type(element)->kind() != TypeKind::TensorType) refuse(kind);
    if (!optional && kind == "as_optional_tensors") refuse(kind);
    std::vector<Part> parts;
    for (const Document& item : value.items()) {
      parts.push_back(kind == "as_tensors" ? tensor_part(item, names_)
                                           : optional_tensor_part(item, names_));
    }
    return {optional ? Form::optional_tensors : Form::tensors, std::move(parts)};
  }

  BoundArgument number(const std::string& kind, const Document& value) const {
    const Part part = number_part(kind, value, names_);
    const bool whole = kind == "as_int" || kind == "as_sym_int";
    const bool truth = kind == "as_bool" || kind == "as_sym_bool";
    switch (type_->kind()) {
      case TypeKind::NumberType:
        return settled(Form::value, {part});
      case TypeKind::TensorType:
        return settled(Form::wrapped_number, {part});
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        if (!whole) refuse(kind);
        return settled(Form::value, {part});
      case TypeKind::BoolType:
        if (!truth) refuse(kind);
        return settled(Form::value, {part});
      case TypeKind::FloatType:
        if (truth || kind == "as_complex") refuse(kind);
        return settled(Form::real_number, {part});
      case TypeKind::ListType: {  // one number for all elements of a list of a known length
        const auto form = list_form(*element_kind(type_));
        if (!form || !parameter_.N() || !fits(kind, *form)) refuse(kind);
        return settled(*form, std::vector<Part>(static_cast<size_t>(*parameter_.N()), part));
      }
      default:
        refuse(kind);
    }
  }

  BoundArgument list(const std::string& kind, const Document& value) const {
    const auto elements = element_kind(type_);
    const auto form = elements ? list_form(*elements) : std::nullopt;
    if (!form || !fits(kind, *form)) refuse(kind + "s");
    std::vector<Part> parts;
    for (const Document& item : value.items()) parts.push_back(number_part(kind, item, names_));
    return settled(*form, std::move(parts));
  }

  const Names& names_;
  const c10::Argument& parameter_;
  const c10::TypePtr type_;
  const std::string where_;
};

}  // namespace

BoundArgument bind_argument(const Document& written, const c10::Argument& parameter,
                            const Names& names) {
  const auto [kind, value] = written.choice();
  return Binder(written, parameter, names).bind(kind, value);
}

BoundArgument bind_any(const Document& written, const Names& names) {
  const auto [kind, value] = written.choice();
  if (kind == "as_none") return BoundArgument(IValue());
  if (kind == "as_string") return BoundArgument(IValue(value.text()));
  if (kind == "as_tensor") return {Form::value, {tensor_part(value, names)}};
  if (is_number(kind)) return settled(Form::value, {number_part(kind, value, names)});
  if (kind == "as_optional_tensor") return {Form::value, {optional_tensor_part(value, names)}};
  fail(written.where(), ": values of the kind '", kind, "' are not supported here");
}

}  // namespace oslo::exported
