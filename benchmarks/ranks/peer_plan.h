#pragma once

#include <oslo_cpp/oslo.h>

namespace bench {

/// The layers of bench::Gpt that the peer cuts, and only those; with `words` also the table, which
/// is the head.
inline oslo::Config cut_like_the_peer(int ranks, bool words = false) {
  oslo::Config config = oslo::Config::parse(R"({
    "model_parallelism": {"enable": true},
    "plan": {"wte": "replicate", "wpe": "replicate",
             "h.*.attn.q": "column", "h.*.attn.k": "column", "h.*.attn.v": "column",
             "h.*.attn.proj": "row", "h.*.fc": "column", "h.*.proj": "row"}
  })");
  if (words) config.set("plan.wte=vocab");
  config.set(c10::str("model_parallelism.tensor_parallel_size=", ranks));
  return config;
}

}  // namespace bench
