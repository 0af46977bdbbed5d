#pragma once

#include <functional>

#include "parallelizers/placement/engine/call.h"

namespace oslo {

/// In-place operators write this rank's part and keep the layout of what they write; the other
/// operands, which correspond to it as `map_of` says, move to it. What they write must not be cut
/// on a letter that has to be whole.
using MapOf = std::function<DimensionMap(c10::ArrayRef<Value>)>;
void run_in_place(Call& call, const MapOf& map_of);
/// The same with `local` in the operator's place: it writes the first of the local operands.
void run_in_place(Call& call, const MapOf& map_of, const Call::LocalFunction& local);

/// Any other in-place operator: works on a gathered copy and writes this rank's part back.
void gather_in_place(Call& call, const std::string& reason);

/// `value` (global) becomes the content of `target`, which is placed, marked or plain.
void write_to(const at::Tensor& target, const Value& value, const char* operation);
/// `value`, a result of the call, becomes the content of `target`.
void write_result(const Call& call, const at::Tensor& target, Value value);

/// Throws when `target` cannot be written: a parameter whose gradient is being recorded, a copy in
/// place of a view.
void check_writable(const at::Tensor& target, const char* operation);

/// Throws for a parameter or buffer that the call must not write: others hold it, too, who would
/// not see it.
void check_written_where_held(const Call& call, const at::Tensor& target);

}  // namespace oslo
