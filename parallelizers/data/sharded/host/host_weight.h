#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/DimVector.h>
#include <c10/util/accumulate.h>

#include <cstdint>

namespace oslo {

/// A whole weight as it lies in memory, without gaps, and this rank's stretch of one dimension. Of
/// a weight that cannot be cut each rank has all, in memory of its own.
struct HostWeight {
  c10::ScalarType type;
  c10::DimVector sizes, strides;
  int64_t dim;          ///< the outermost one in memory; -1: it is not cut
  int64_t begin, size;  ///< of the stretch
  bool here;            ///< on this rank's pipeline stages

  bool is_cut() const { return dim >= 0; }
  int64_t elements() const { return c10::multiply_integers(sizes); }
  /// Before the stretch. Of a weight without elements there is no stretch, whatever its sizes say.
  int64_t elements_before() const { return elements() > 0 ? begin * strides[dim] : 0; }
  c10::DimVector sizes_of_part() const {
    c10::DimVector own = sizes;
    own[dim] = size;
    return own;
  }
};

}  // namespace oslo
