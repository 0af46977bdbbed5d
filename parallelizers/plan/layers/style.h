#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "parallelizers/placement/layout/weight_uses.h"

namespace oslo {

/// How the weight of a layer is cut.
enum class Style {
  replicate,  ///< every rank holds it
  column,     ///< output features (of an embedding: the embedding dimension)
  row,        ///< input features of a linear layer
  vocab,      ///< rows of an embedding; of a linear layer the same as column
  shard,      ///< a dimension of a parameter that belongs to no such layer
};

std::string to_string(Style style);

/// " scatter=-2" as plans write it; " joined" of what the search joins; empty where nothing is
/// said.
std::string use_text(const AxisUse& use);

/// A style as plans write it: "column", "row", "vocab", "replicate", "shard(1)"; column, row and
/// shard optionally with "blocks=3" (a fused projection) and "unit=16" (a head): "column blocks=3
/// unit=16". How the layer's result and input lie follows, as a dimension that counts from the end
/// when negative: "row scatter=-2" (also of vocab) gives each rank its part of the sum, "replicate
/// split=-2" of a whole result, "replicate input=0" of the input.
struct LayerStyle {
  Style style = Style::replicate;
  int64_t blocks = 1;
  int64_t unit = 1;
  int64_t dim = 0;   ///< of a shard
  AxisUse use = {};  ///< on the tensor axis

  /// "column", "shard(1)": without blocks and unit.
  std::string name() const;
  /// Whether it may come in blocks and units.
  bool divides() const {
    return style == Style::column || style == Style::row || style == Style::shard;
  }

  /// Throws naming `where` when the text is none of these.
  static LayerStyle parse(const std::string& text, const std::string& where);

  bool operator==(const LayerStyle&) const = default;
};

/// Styles by axis, in the order written: "row: shard(1); column: column blocks=3". A style without
/// an axis stands alone and has an empty name. Throws naming `where` for other texts, and when an
/// axis is named twice.
using AxisStyles = std::vector<std::pair<std::string, LayerStyle>>;
AxisStyles parse_axis_styles(const std::string& text, const std::string& where);

}  // namespace oslo
