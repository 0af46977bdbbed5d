#include "parallelizers/placement/layout/moving/other_mesh.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/base/ledger.h"

namespace oslo {
namespace {

/// Whether somebody beside the values has to know of what is done with them.
bool has_more_than_a_mesh(const ModelContext& context) {
  return context.residence() != nullptr || context.follows() || context.observer ||
         context.gather_watch || context.sum_watch;
}

/// For each axis of `narrow` the one of `wide` over the same ranks; -1 for one of a single rank,
/// which cuts nothing. None where `wide` lacks one.
std::optional<std::vector<int>> axes_within(const Mesh& narrow, const Mesh& wide) {
  std::vector<int> found;
  for (int own = 0; own < narrow.axes(); ++own) {
    int at = -1;
    for (int axis = 0; narrow.axis(own)->size() > 1 && axis < wide.axes(); ++axis) {
      if (wide.axis(axis)->ranks() == narrow.axis(own)->ranks()) at = axis;
    }
    const bool missing = at < 0 && narrow.axis(own)->size() > 1;
    if (missing || (at >= 0 && std::ranges::find(found, at) != found.end())) return std::nullopt;
    found.push_back(at);
  }
  return found;
}

/// The same where values of both may meet; none where they may not.
std::optional<std::vector<int>> axes_that_meet(const ModelContext& narrow,
                                               const ModelContext& wide) {
  if (has_more_than_a_mesh(narrow) || has_more_than_a_mesh(wide)) return std::nullopt;
  return axes_within(narrow.mesh(), wide.mesh());
}

std::string ranks_text(const Mesh& mesh) {
  std::string text;
  for (int axis = 0; axis < mesh.axes(); ++axis) {
    text += axis == 0 ? "ranks" : " x ranks";
    for (const int rank : mesh.axis(axis)->ranks()) text += " " + std::to_string(rank);
  }
  return text;
}

}  // namespace

bool lies_within(const ModelContext& narrow, const ModelContext& wide) {
  return axes_that_meet(narrow, wide).has_value();
}

LayoutPtr on_mesh_of(const LayoutPtr& layout, const ContextPtr& context) {
  if (!layout || over_same_ranks(layout->context(), context)) return layout;
  const auto axes = axes_that_meet(*layout->context(), *context);
  if (!axes) return nullptr;
  auto there = std::make_shared<Layout>(context);
  for (int own = 0; own < layout->axes(); ++own) {
    if (const int axis = (*axes)[own]; axis >= 0) (*there)[axis] = (*layout)[own];
  }
  return there;
}

Value on_mesh_of(Value value, const ContextPtr& context) {
  if (!value.layout || !context || value.layout->context() == context || value.partial) {
    return value;
  }
  LayoutPtr there = on_mesh_of(value.layout, context);
  if (!there || there == value.layout) return value;
  value.layout = std::move(there);
  value.use = {};
  return value;
}

void check_one_mesh(const ContextPtr& a, const ContextPtr& b) {
  if (over_same_ranks(a, b)) return;
  const bool more = has_more_than_a_mesh(*a) || has_more_than_a_mesh(*b);
  fail(RuleScope::current(), " met values of two meshes, over ", ranks_text(a->mesh()),
       " and over ", ranks_text(b->mesh()), "; oslo::full_tensor(t) makes one of them plain",
       more ? ". (A model over pipeline stages, with \"amp\", \"master_weights\" or "
              "\"activation_checkpoint\", or strict takes values of its own mesh alone: hand it "
              "each data rank's own rows, as a plain tensor)"
            : ", and oslo::distribute puts one on a mesh that has the axes of both, such as "
              "mpu.mesh({\"data\", \"tensor\"})");
}

}  // namespace oslo
