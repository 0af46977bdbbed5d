#pragma once

#include <torch/arg.h>

namespace oslo {

/// How `DistributedDataParallel` exchanges gradients; the names are PyTorch's.
struct DDPOptions {
  /// Gradients travel in buckets of at most this many MiB (one larger gradient is a bucket of its
  /// own). The first bucket to be ready is at most 1 MiB, so that the exchange starts early.
  TORCH_ARG(double, bucket_cap_mb) = 25.0;

  /// Looks, in each forward, for parameters that the outputs do not depend on. Without it every
  /// trained parameter must take part in the loss on every rank.
  TORCH_ARG(bool, find_unused_parameters) = false;

  /// Sends buffers (BatchNorm's statistics) from data rank 0 at the first forward after a training
  /// step.
  TORCH_ARG(bool, broadcast_buffers) = true;

  /// Gradients lie in the buckets themselves, which saves a copy of them and its memory.
  TORCH_ARG(bool, gradient_as_bucket_view) = false;

  /// The same parameters are used, equally often, in every step: unused ones are found once, and
  /// parameters may get gradients several times in a backward pass. The first backward exchanges
  /// gradients at its end, also under `no_sync`.
  TORCH_ARG(bool, static_graph) = false;
};

}  // namespace oslo
