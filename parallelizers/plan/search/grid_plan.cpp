#include "parallelizers/plan/search/grid_plan.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "parallelizers/plan/layers/role.h"

namespace oslo {
namespace {

constexpr const char *kRow = "row", *kColumn = "column", *kDepth = "depth";
constexpr const char *kInput = "input", *kWeight = "weight", *kOutput = "output";
constexpr int64_t kBatch = 0;

bool cut_here(const LayerPlan& layer) {
  return layer.traits().one_result && !layer.asked_for && !layer.computed && !layer.decided &&
         layer.view.stays_whole.empty();
}

LayerStyle style(Style kind, std::optional<int64_t> input_dim = std::nullopt) {
  LayerStyle made;
  made.style = kind;
  made.use.input_dim = input_dim;
  return made;
}

/// Of the output features; of a convolution in groups whole groups.
LayerStyle columns(const LayerPlan& layer) {
  LayerStyle made = style(Style::column);
  if (layer.groups() > 1) made.unit = layer.weight().size(0) / layer.groups();
  return made;
}

/// A sum of which each rank gets its part of the batch, where there is one.
LayerStyle scattered(Style kind, bool batch) {
  LayerStyle made = style(kind);
  if (batch) made.use = {AxisUse::Result::scatter, kBatch};
  return made;
}

/// Rows and columns, and depth if there is one.
void cut_flat(LayerPlan& layer, const PlanAxes& axes, std::optional<int64_t> batch,
              bool keeps_gathered) {
  const Style over_rows = layer.kind == LayerKind::linear ? Style::row
                          : layer.embedding()             ? Style::vocab
                                                          : Style::replicate;
  layer.other_styles[kRow] = style(over_rows, batch);
  layer.other_styles[kColumn] = columns(layer);
  if (axes.has(kDepth)) layer.other_styles[kDepth] = style(Style::replicate, batch);
  layer.gathers_again = layer.kind == LayerKind::linear && !keeps_gathered;
}

/// Whether a linear layer takes what another one widened, rather than the stream: by its name.
bool narrows(LayerPlan layer) {
  layer.axis = "tensor";
  layer.traits().plan(layer);
  return layer.style.style == Style::row;
}

/// The cube. What a layer gives has its features over the axis that its own weight has them over,
/// and its batch over the other one, so that layers in a row exchange the two.
void cut_cube(LayerPlan& layer, std::optional<int64_t> batch, bool exchanged) {
  const bool linear = layer.kind == LayerKind::linear;
  const char* const sums = exchanged ? kWeight : kOutput;
  const char* const features = exchanged ? kOutput : kWeight;
  if (linear) {
    layer.other_styles[kInput] = style(Style::row, batch);
    layer.other_styles[sums] = scattered(Style::row, batch.has_value());
    layer.other_styles[features] = style(Style::column);
    return;
  }
  const Style table = layer.embedding() ? Style::vocab : Style::replicate;
  layer.other_styles[kInput] = style(table, batch);
  layer.other_styles[kWeight] =
      layer.embedding() ? scattered(table, batch.has_value()) : style(table);
  layer.other_styles[kOutput] = columns(layer);
}

class GridSearch {
 public:
  GridSearch(std::vector<LayerPlan>& layers, const PlanAxes& axes, bool keeps_gathered)
      : layers_(layers),
        axes_(axes),
        keeps_gathered_(keeps_gathered),
        roles_(roles_of(layers, axes.ranks())) {}

  /// By structure: `batch` of the indices of look-ups.
  void begin(std::optional<int64_t> batch_of_indices) {
    for (LayerPlan& layer : layers_) {
      if (!cut_here(layer)) continue;
      cut(layer, layer.embedding() ? batch_of_indices : std::optional<int64_t>(kBatch),
          layer.kind == LayerKind::linear && narrows(layer));
      layer.why += "; cut over the grid of ranks";
    }
    follow_ties(layers_);
  }

  /// By runs on shapes: look-ups without a batch, and what linear layers exchange.
  void improve(DryRun& run) {
    int64_t least = bytes_of(run, layers_);
    for (const Role& role : roles_) {
      const LayerPlan first = layers_[role.layers.front()];
      if (!cut_here(first)) continue;
      const bool flips = first.kind == LayerKind::linear && axes_.has(kOutput);
      if (!first.embedding() && !flips) continue;
      std::vector<LayerPlan> tried = layers_;
      for (const size_t i : role.layers) {
        if (flips) {
          cut(tried[i], kBatch, first.other_styles.at(kOutput).style == Style::row);
        } else {
          cut(tried[i], std::nullopt, false);
        }
      }
      const int64_t bytes = bytes_of(run, tried);
      if (bytes >= least) continue;
      least = bytes;
      layers_ = std::move(tried);
    }
  }

 private:
  void cut(LayerPlan& layer, std::optional<int64_t> batch, bool exchanged) const {
    if (axes_.has(kOutput)) {
      cut_cube(layer, batch, exchanged);
    } else {
      cut_flat(layer, axes_, batch, keeps_gathered_);
    }
  }

  static int64_t bytes_of(DryRun& run, std::vector<LayerPlan> tried) {
    try {
      return run.run(tried).bytes;
    } catch (const std::exception&) {
      return DryCost::impossible().bytes;  // an input has no such dimension
    }
  }

  std::vector<LayerPlan>& layers_;
  const PlanAxes& axes_;
  const bool keeps_gathered_;
  const std::vector<Role> roles_;  ///< found while weights are what they are, not shapes of parts
};

}  // namespace

void cut_over_grid(std::vector<LayerPlan>& layers, const ModelView& model, const PlanAxes& axes,
                   const std::function<void()>& example, const Rates& rates, bool keeps_gathered) {
  GridSearch search(layers, axes, keeps_gathered);
  // Without an example nobody knows which look-ups are of positions, which have no batch: the first
  // layer behind them takes its part of it.
  search.begin(example ? std::optional<int64_t>(kBatch) : std::nullopt);
  if (!example) return;
  FirstWrites writes;
  DryRun run(model, axes, example, writes, rates);
  search.improve(run);
}

}  // namespace oslo
