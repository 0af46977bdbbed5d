#include <ATen/ATen.h>

#include <optional>

#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/layout/cuts/cut_requests.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/parts.h"

namespace oslo {
namespace {

/// constant_pad_nd, reflection_pad and their like: pairs of widths, the last dimension first.
void pad(Call& call) {
  const std::vector<int64_t> widths = call.integers(1);
  const int64_t dims = call.dim(0);
  if (static_cast<int64_t>(widths.size()) > 2 * dims || widths.size() % 2 != 0) {
    throw ShapeMismatch("pad: as many pairs of widths as dimensions, at most");
  }
  const std::string own = letters(dims);
  std::string along;
  for (size_t i = 0; i < widths.size(); ++i) {
    if (widths[i] != 0) along += own[dims - 1 - static_cast<int64_t>(i / 2)];
  }
  run_on_elements(call, {{own}, {own}, along});
}

/// unfold(self, dimension, size, step): windows along a dimension, in a new last one.
void unfold(Call& call) {
  const int64_t dims = call.dim(0);
  const std::string own = letters(dims);
  const int64_t along = call.dimension(1, dims);
  call.run({{own}, {own + "W"}, dims == 0 ? "" : std::string(1, own[along])});
}

int64_t square(int64_t factor) {
  return factor * factor;
}

/// (.., C, height, width) with `before` input channels for every `after` output channels.
void channels_to_pixels(Call& call, int64_t before, int64_t after) {
  const Value x = call.value(0);
  const int64_t dims = x.dim();
  if (dims < 3 || before < 1 || after < 1 || x.size(dims - 3) % before != 0) {
    return call.gather("shapes that do not fit");
  }
  const std::string own = letters(dims);
  const char channel = own[dims - 3];
  DimensionMap map{{own}, {own}, own.substr(dims - 2)};
  if (before != 1) map.scales.push_back({0, channel, before});
  if (after != 1) map.scales.push_back({DimensionMap::kResult, channel, after});
  run_on_elements(call, map);
}

/// Output channel c is made of the input channels r x r x c and on: those may be cut in such units.
void pixel_shuffle(Call& call) {
  channels_to_pixels(call, square(call.integer(1)), 1);
}

void pixel_unshuffle(Call& call) {
  channels_to_pixels(call, 1, square(call.integer(1)));
}

int64_t product(const std::vector<int64_t>& kernel) {
  return kernel.size() == 1 ? square(kernel[0]) : c10::multiply_integers(kernel);
}

/// (n, C, height, width) or without n -> (n, C x kernel, positions).
void im2col(Call& call) {
  const int64_t dims = call.dim(0);
  if (dims < 3 || dims > 4) throw ShapeMismatch("im2col: an image of three or four dimensions");
  const std::string batch = dims == 4 ? "n" : "";
  DimensionMap map{{batch + "Cxy"}, {batch + "CL"}, "xy"};
  map.scales = {{DimensionMap::kResult, 'C', product(call.integers(1))}};
  run_on_elements(call, map);
}

/// (n, C x kernel, positions) or without n -> (n, C, height, width).
void col2im(Call& call) {
  const Value x = call.value(0);
  const int64_t dims = x.dim(), kernel = product(call.integers(2));
  if (dims < 2 || dims > 3 || kernel < 1 || x.size(dims - 2) % kernel != 0) {
    return call.gather("shapes that do not fit");
  }
  const std::string batch = dims == 3 ? "n" : "";
  DimensionMap map{{batch + "CL"}, {batch + "Cxy"}, "L"};
  map.scales = {{0, 'C', kernel}};
  run_on_elements(call, map);
}

/// affine_grid_generator(theta, size, align_corners): theta (n, rows, columns), size (n, C, ..).
void affine_grid(Call& call) {
  const std::vector<int64_t> size = call.integers(1);
  if (size.empty() || call.dim(0) != 3) throw ShapeMismatch("affine_grid: theta (n, r, c)");
  const DimensionMap map{{"nrc"}, {"nXYZ"}, "rc"};
  const auto own_images = [&](c10::ArrayRef<at::Tensor> local) {
    std::vector<int64_t> own = size;
    own[0] = local[0].size(0);
    std::vector<c10::IValue> arguments = call.arguments().vec();
    arguments[0] = local[0];
    arguments[1] = own;
    return call.call_with(std::move(arguments));
  };
  call.run(map,
           [&](c10::ArrayRef<at::Tensor> local) { return on_elements(map, local, own_images); });
}

/// How channel_shuffle changes a cut of the channels, and into how many groups this rank shuffles
/// its own. The channels (groups, each) become (each, groups).
struct Shuffled {
  CutPtr cut;
  int64_t groups;
};

std::optional<Shuffled> shuffled(const Cut& cut, int64_t groups, int rank) {
  if (cut.runs().size() != 1) return std::nullopt;
  const auto& [repeat, pieces] = cut.runs().front();
  const auto with = [&](const Cut& changed) {
    return std::make_shared<const Cut>(changed.runs(), cut.origin(), cut.origin_scale());
  };
  if (repeat % groups == 0) {  // every group is cut alike
    return Shuffled{with(*Cut({{repeat / groups, pieces}}).scaled(groups)), groups};
  }
  const int64_t each = cut.size() / groups;
  const CutPtr whole_groups = repeat == 1 ? cut.divided(each) : nullptr;
  if (!whole_groups) return std::nullopt;
  return Shuffled{with(*whole_groups->repeated(each)), whole_groups->local_size(rank)};
}

/// channel_shuffle(self, groups) of (n, C, ..).
void channel_shuffle(Call& call) {
  Value x = call.value(0);
  const int64_t groups = call.integer(1), dims = x.dim();
  if (dims < 3 || groups < 1 || x.size(1) % groups != 0) {
    return call.gather("shapes that do not fit");
  }
  const Axes cutting = x.axes_cutting(1);
  if (cutting.size() > 1) return call.gather("channels cut by several axes");
  std::optional<Layout> layout;
  if (x.layout) layout = *x.layout;
  int64_t own_groups = groups;
  if (!cutting.empty()) {
    CutPtr& cut = (*layout)[cutting[0]].cut;
    const auto changed = shuffled(*cut, groups, layout->group(cutting[0])->rank());
    if (!changed) {
      wish_unit(*cut, x.size(1) / groups);
      return call.gather("channels cut otherwise than in groups");
    }
    own_groups = changed->groups;
    cut = changed->cut;
  }
  at::Tensor y =
      x.local.numel() == 0 ? x.local.clone() : call.call_with({x.local, own_groups})[0].toTensor();
  call.result({std::move(y), layout ? std::make_shared<const Layout>(*layout) : nullptr});
}

}  // namespace

void add_image_rules(RuleTable& table) {
  table.add({"aten::constant_pad_nd", "aten::_pad_circular", "aten::reflection_pad1d",
             "aten::reflection_pad2d", "aten::reflection_pad3d", "aten::replication_pad1d",
             "aten::replication_pad2d", "aten::replication_pad3d"},
            pad);
  table.add({"aten::unfold", "aten::unfold_copy"}, unfold);
  table.add({"aten::pixel_shuffle"}, pixel_shuffle);
  table.add({"aten::pixel_unshuffle"}, pixel_unshuffle);
  table.add({"aten::channel_shuffle", "aten::native_channel_shuffle"}, channel_shuffle);
  table.add({"aten::im2col"}, im2col);
  table.add({"aten::col2im"}, col2im);
  table.add({"aten::affine_grid_generator"}, affine_grid);
}

}  // namespace oslo
