#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mpu/group/group.h"
#include "parallelizers/placement/layout/layout.h"

namespace oslo {

/// How data replicas share a parameter's gradient out once they have added it up (ZeRO 2,
/// Rajbhandari et al. 2020, arXiv 1910.02054): each keeps rows. The parameter itself stays what it
/// is, an ordinary tensor where no other axis cuts it.
struct GradientShare {
  std::string name;
  /// Of the exchanged gradient: on the axes of the parameter's mesh as the parameter, then cut over
  /// the replicas.
  LayoutPtr layout;
  std::shared_ptr<Group> replicas;
  int64_t dim;                ///< that the replicas cut
  std::vector<int64_t> rows;  ///< along `dim`, of this rank's part of the parameter, by replica
};

using GradientSharePtr = std::shared_ptr<const GradientShare>;

/// From now on exchanges leave of the gradient of `parameter`, a leaf that is trained, what `share`
/// says, as a marked tensor in `.grad`: the owner's part on its owner, no row elsewhere.
///
/// LibTorch would add the next backward's gradient, which is whole, to that part. So a hook sets
/// the part aside when a gradient arrives. Who exchanges takes it (`take_part`) and adds to it; at
/// the end of a pass that did not exchange it goes into the whole gradient: times the number of
/// replicas, in its own rows, so that the average over them is what it was.
void share_gradient(const at::Tensor& parameter, GradientSharePtr share);

/// Takes that back, if it is this `share`. The gradient that the parameter has stays as it is.
void share_no_gradient(const at::Tensor& parameter, const GradientSharePtr& share);

/// Null where nobody shares it out.
GradientSharePtr gradient_share(const at::Tensor& parameter);

/// Whether `.grad` of the parameter is this rank's part of an exchanged gradient.
bool has_part(const at::Tensor& parameter);

/// Takes the part that was set aside, or that `.grad` is. Undefined: there is none.
at::Tensor take_part(const at::Tensor& parameter);

/// Makes an ordinary tensor of this rank's rows, or a part that was taken, the part in `.grad`;
/// where a whole gradient has come meanwhile, the one that is set aside.
void give_part(const at::Tensor& parameter, const at::Tensor& rows);

/// While `held`, passes that do not exchange leave the part aside: an exchange follows, which takes
/// it.
void hold_part(const at::Tensor& parameter, bool held);

}  // namespace oslo
