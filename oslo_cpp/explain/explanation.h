#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "mpu/base/ledger.h"

namespace oslo {

/// How a value lies: as a part on each rank of an axis, or whole.
struct ExplainedValue {
  /// Of a dimension over one axis. A rank has `sizes[rank]` elements, in so many stretches that do
  /// not follow each other.
  struct Cut {
    std::string axis;
    int64_t dim = 0;
    std::vector<int64_t> sizes;
    int64_t stretches = 1;
    std::string from;  ///< the parameter whose cut it comes from; empty: not known
    bool operator==(const Cut& other) const = default;
  };

  std::string name;  ///< of a parameter, or what is computed of one alone; empty otherwise
  std::string type;  ///< "Float"
  std::vector<int64_t> shape;        ///< global
  std::vector<int64_t> local_shape;  ///< of this rank's part
  std::vector<Cut> cuts;             ///< none: every rank has all of it
  std::string partial;               ///< the axis over which it still has to be added up; or empty
  /// Whether it gets a gradient. That lies as the value does; of a partial sum it is whole.
  bool gradient = false;

  /// "whole", "dim 2 over tensor: 8+7", "partial sum over tensor".
  std::string placement() const;
  /// The same of its gradient; "none" where it gets none.
  std::string gradient_placement() const;
  bool operator==(const ExplainedValue& other) const = default;
};

/// What one collective moved.
struct ExplainedMove {
  std::string group;       ///< "tensor"
  std::string collective;  ///< "all_reduce"
  std::string rule;        ///< who asked: "aten::addmm", "ddp"
  std::string why;
  bool backward = false;
  int64_t elements = 0, bytes = 0;  ///< that this rank received, at ring cost (mpu/base/ledger.h)
  bool operator==(const ExplainedMove& other) const = default;
};

/// One operator that the model's code called.
struct ExplainedCall {
  std::string module;     ///< that of the parameter which it used, or of the last one used before
  bool of_module = true;  ///< whether it used a parameter itself
  std::string operation;  ///< "aten::addmm"
  std::vector<ExplainedValue> operands, results;
  std::vector<ExplainedMove> moves;
  std::vector<std::string> gathers;  ///< why it had to gather, where no rule and no plan avoids it
  bool operator==(const ExplainedCall& other) const = default;
};

/// How every activation of a step lies, what moved for it, and why. Values and bytes are those of
/// one rank; what moved adds up to what the groups' ledgers counted. (PyTorch's counterparts are
/// `CommDebugMode` and `DebugMode`, which print collectives by module.)
struct Explanation {
  std::string of;  ///< what was looked at: "the example, on shapes", "a recorded step"
  int rank = 0;    ///< of the world
  std::vector<ExplainedCall> calls;    ///< in order
  std::vector<ExplainedMove> outside;  ///< for no operator of the model: gradients, norms
  std::string note;                    ///< what it does not show; empty: nothing

  /// All that moved by one collective over one group; empty: by all, over all.
  Traffic total(const std::string& group = "", const std::string& collective = "") const;
  /// Text for people: equal layers are written once.
  std::string to_string() const;
  /// The same for programs, every call by itself.
  nlohmann::json to_json() const;
  /// One page that needs nothing else, for a browser.
  std::string to_html() const;
};

}  // namespace oslo
