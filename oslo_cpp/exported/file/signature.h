#pragma once

#include <string>
#include <vector>

#include "oslo_cpp/exported/file/document.h"

namespace oslo::exported {

/// What an exported program takes and gives (schema.py's GraphSignature).
struct Signature {
  enum class Kind {
    parameter,
    buffer,
    constant,  ///< a tensor that Python made while it traced: torch.tensor([2.0])
    user,      ///< what forward is called with
    fixed,     ///< what it was called with when it was traced, and is always: a number, None
  };
  struct Input {
    Kind kind;
    std::string value;  ///< its name in the graph
    std::string name;   ///< "h.0.ln.weight"; of user inputs the name in the graph
    bool saved = true;  ///< of a buffer: whether Python's state_dict has it
  };
  std::vector<Input> inputs;  ///< one for each input of the graph
};

/// Throws `Error` for what a program in training form does not have: results that are gradients, a
/// loss, or new values of buffers (the form after `run_decompositions`), and for custom objects.
Signature read_signature(const Document& written);

/// "logits", "hidden.0": the results of a program, in their order, by the tuples and dictionaries
/// that Python's forward returned. "output" where it returned a tensor. Where that cannot be told,
/// "0", "1" and so on.
std::vector<std::string> output_names(const Document& graph_module, size_t count);

}  // namespace oslo::exported
