#pragma once

/// What a training needs around its steps: learning-rate schedules, a loop with hooks, and means
/// over all ranks (docs/training.md).
#include "oslo_cpp/training/hooks/accuracy_hook.h"        // IWYU pragma: export
#include "oslo_cpp/training/hooks/checkpoint_hook.h"      // IWYU pragma: export
#include "oslo_cpp/training/hooks/early_stopping_hook.h"  // IWYU pragma: export
#include "oslo_cpp/training/hooks/log_metrics_hook.h"     // IWYU pragma: export
#include "oslo_cpp/training/hooks/loss_hook.h"            // IWYU pragma: export
#include "oslo_cpp/training/hooks/progress_hook.h"        // IWYU pragma: export
#include "oslo_cpp/training/hooks/rate_hooks.h"           // IWYU pragma: export
#include "oslo_cpp/training/hooks/run_config_hook.h"      // IWYU pragma: export
#include "oslo_cpp/training/hooks/throughput_hook.h"      // IWYU pragma: export
#include "oslo_cpp/training/metrics/metric_sums.h"        // IWYU pragma: export
#include "oslo_cpp/training/rates/rate_schedule.h"        // IWYU pragma: export
#include "oslo_cpp/training/rates/reduce_on_plateau.h"    // IWYU pragma: export
#include "oslo_cpp/training/rates/warmup_schedules.h"     // IWYU pragma: export
#include "oslo_cpp/training/trainer/trainer.h"            // IWYU pragma: export
