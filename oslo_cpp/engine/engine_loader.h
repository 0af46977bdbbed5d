#pragma once

#include <c10/util/Type.h>
#include <torch/data/dataloader/stateless.h>
#include <torch/data/samplers/distributed.h>

#include <cstddef>
#include <deque>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "oslo_cpp/engine/batch_rows.h"
#include "oslo_cpp/engine/loader_part.h"

namespace oslo {

/// A loader whose batches are those of this data rank already: see `divided`.
template <typename Loader>
struct DividedLoader {
  Loader loader;
};

/// Says that a loader gives each data rank its own batches, as one with a sampler that was made for
/// this rank does. An engine then takes them as they are. LibTorch's loaders with a
/// DistributedSampler are known to.
template <typename Loader>
DividedLoader<Loader> divided(Loader&& loader) {
  return {std::forward<Loader>(loader)};
}

namespace detail {

template <typename Loader>
inline constexpr bool is_divided = false;
template <typename Loader>
inline constexpr bool is_divided<DividedLoader<Loader>> = true;
template <typename Dataset, typename Sampler>
inline constexpr bool is_divided<torch::data::StatelessDataLoader<Dataset, Sampler>> =
    std::is_base_of_v<torch::data::samplers::DistributedSampler<>, Sampler>;
template <typename Loader>
inline constexpr bool is_divided<std::unique_ptr<Loader>> = is_divided<Loader>;
template <typename Loader>
inline constexpr bool is_divided<std::shared_ptr<Loader>> = is_divided<Loader>;

/// What has begin() and end(): the loader, or what it points to.
template <typename Loader>
auto& range_of(Loader& loader) {
  if constexpr (requires { loader.begin(); }) {
    return loader;
  } else {
    return *loader;
  }
}
template <typename Loader>
auto& range_of(DividedLoader<Loader>& divided) {
  return range_of(divided.loader);
}

}  // namespace detail

/// The loader that `initialize` returns beside an engine: a program's own (a LibTorch data loader,
/// or any range of batches), of which this data rank gets its rows:
///
///   - Each batch is divided along its rows over the data ranks, as tensor_split does: of 9 rows
///     over 2 ranks they have 5 and 4. So a loop is that of one device, on any number of ranks, and
///     no row is left out or seen twice. An engine weights the ranks' mean losses by their rows.
///   - A loader that gives each rank its own batches (`divided`) stays as it is.
///   - Of `gradient_accumulation` batches a step an epoch has whole steps, as in Colossal-AI: the
///     batches left over are left out. Rank 0 says so, once, on the standard error. The batches of
///     a step are read together.
///
/// All ranks iterate alike: the first batch of an epoch is compared. Throws, on all ranks, where
/// that differs, and for a batch of fewer rows than data ranks.
///
/// `Loader` is a reference where initialize was given a loader that lives elsewhere, which must
/// outlive this. One epoch at a time.
template <typename Loader>
class EngineLoader {
  using Range = std::remove_reference_t<decltype(detail::range_of(std::declval<Loader&>()))>;
  using Source = decltype(std::declval<Range&>().begin());
  using Sentinel = decltype(std::declval<Range&>().end());

 public:
  using Batch = std::remove_cvref_t<decltype(*std::declval<Source&>())>;
  static constexpr bool divides = !detail::is_divided<std::remove_cvref_t<Loader>>;

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;

    Iterator() = default;
    /// The batch that the training loop is at.
    Batch& operator*() const {
      OSLO_CHECK(!at_end(), "the loader has no more batches in this epoch; take begin() again");
      return state_->current();
    }
    Batch* operator->() const { return &**this; }
    Iterator& operator++() {
      OSLO_CHECK(!at_end(), "the loader has no more batches in this epoch; take begin() again");
      state_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(const Iterator& other) const { return at_end() == other.at_end(); }

   private:
    friend class EngineLoader;
    bool at_end() const { return !state_ || state_->waiting.empty(); }
    explicit Iterator(std::shared_ptr<typename EngineLoader::State> state)
        : state_(std::move(state)) {}
    std::shared_ptr<typename EngineLoader::State> state_;
  };

  EngineLoader(Loader&& loader, LoaderPart part)
      : state_(new State{std::forward<Loader>(loader), std::move(part)}) {
    OSLO_CHECK(!state_->part.divides() || BatchRows<Batch>::known,
               "initialize: nobody knows how to divide a batch of type ",
               c10::demangle_type<Batch>(),
               " over data ranks; specialize oslo::BatchRows for it, or hand over "
               "oslo::divided(loader), whose batches are those of this rank");
  }

  /// Begins an epoch. Collective over the world.
  Iterator begin() {
    state_->begin();
    return Iterator(state_);
  }
  Iterator end() { return Iterator(); }

  /// Batches of an epoch, of a range that has a size.
  size_t size() const requires requires(const Range& range) { range.size(); }
  {
    const size_t all = detail::range_of(state_->loader).size();
    return all - all % state_->part.batches_a_step();
  }

  /// LibTorch's loaders are pointers.
  EngineLoader& operator*() { return *this; }
  EngineLoader* operator->() { return this; }

 private:
  struct Waiting {
    Batch batch;
    LoaderPart::Rows rows;
  };

  struct State {
    Loader loader;
    LoaderPart part;
    std::optional<Source> source = {};
    std::optional<Sentinel> sentinel = {};
    std::deque<Waiting> waiting = {};  ///< of this step
    int64_t given = 0;                 ///< of this epoch

    void begin() {
      auto& range = detail::range_of(loader);
      waiting.clear();
      given = 0;
      source.emplace(range.begin());
      sentinel.emplace(range.end());
      agree();
      fill();
    }

    void agree() {
      std::vector<at::Tensor> tensors;
      if constexpr (BatchRows<Batch>::known) {
        if (*source != *sentinel) {
          BatchRows<Batch>::each(**source,
                                 [&](const at::Tensor& each) { tensors.push_back(each); });
        }
      }
      part.agree_on_first(tensors);
    }

    Waiting own(const Batch& batch) const {
      if constexpr (BatchRows<Batch>::known) {
        if (part.divides()) {
          const LoaderPart::Rows rows = part.of(BatchRows<Batch>::rows(batch));
          return {BatchRows<Batch>::part(batch, rows.start, rows.length), rows};
        }
      }
      return {batch, {}};
    }

    /// All batches of the next step, or none.
    void fill() {
      const auto number = static_cast<size_t>(part.batches_a_step());
      while (waiting.size() < number && *source != *sentinel) {
        waiting.push_back(own(**source));
        ++*source;
      }
      if (waiting.size() < number) {
        part.at({});
        part.ended(given, static_cast<int64_t>(waiting.size()));
        waiting.clear();
      }
      given += static_cast<int64_t>(waiting.size());
    }

    Batch& current() {
      part.at(waiting.front().rows);
      return waiting.front().batch;
    }

    void next() {
      waiting.pop_front();
      if (waiting.empty()) fill();
    }
  };

  std::shared_ptr<State> state_;
};

}  // namespace oslo
