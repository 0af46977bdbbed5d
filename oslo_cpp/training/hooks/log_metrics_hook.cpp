#include "oslo_cpp/training/hooks/log_metrics_hook.h"

#include <iostream>
#include <sstream>

namespace oslo {

LogMetricsHook::LogMetricsHook() : out_(std::cout) {}

void LogMetricsHook::after_epoch(Training& training) {
  if (!training.leads()) return;
  std::ostringstream line;
  line.precision(6);
  line << "epoch " << training.epoch << " of " << training.epochs << "  step " << training.steps;
  for (const auto& [name, mean] : training.metrics) line << "  " << name << " " << mean;
  if (!training.stopped.empty()) line << "\ntraining ends: " << training.stopped;
  out_ << line.str() << std::endl;
}

}  // namespace oslo
