#pragma once

#include <functional>
#include <string>

#include "parallelizers/placement/engine/call.h"

namespace oslo {

/// Says what an operator of the program's own (TORCH_LIBRARY) does with tensors that are cut over
/// ranks. Without a rule it is decomposed where LibTorch has its definition (CompositeImplicit) and
/// gathered otherwise: correct, and named in `plan()`. Operators defined with at::Tag::pointwise
/// follow the cut and need none.
///
/// `map` gives every dimension of every tensor a letter, operands and results in the order of the
/// schema (an absent optional tensor is passed over, a list has one entry for all its tensors):
///     oslo::register_rule("mylib::linear", "..K, KN -> ..N");
/// A cut letter stays cut where the result has it. Where the result lacks it the operator on the
/// whole must be the sum of the operators on the parts: the ranks' results are added up (x w is
/// such a sum along K; x w + b is not, since every rank would add b). Along a letter in `whole` the
/// operator mixes elements in another way (a softmax, a sort): what is cut there is gathered first.
/// ".." are any number of leading dimensions, '-' is one of a single element (see MapText). The
/// operator itself runs on this rank's parts, its backward too, so that a gradient that it defines
/// (torch::autograd::Function, an Autograd kernel) is used. At size 1 no rule is asked.
///
/// Registered for the whole process, as the operator is: once, on every rank alike, after
/// TORCH_LIBRARY and before a parallel model first uses the operator. Throws, saying what was seen
/// and what to do: an operator that nobody has defined; one that has a rule, or is pointwise; one
/// that has been used already; a map that does not fit the schema; a map for an operator that
/// writes to an argument, gives a view of one, draws random numbers, or returns something other
/// than tensors. `initialize` refuses ranks whose rules differ, and a call refuses tensors that do
/// not have the dimensions of its map, on all ranks before anything moves. Threads may call it
/// together.
void register_rule(const std::string& name, const std::string& map, const std::string& whole = "");

/// The same with a function in place of a map: it reads the arguments and hands back the results
/// (docs/adding-a-rule.md). It must decide by layouts and global sizes only, and is called by all
/// ranks' threads together.
void register_rule(const std::string& name, std::function<void(Call&)> rule);

}  // namespace oslo
