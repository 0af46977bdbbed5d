#include "oslo_cpp/train_net/training_log.h"

#include <iostream>
#include <sstream>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"
#include "oslo_cpp/training/show/progress_line.h"

namespace oslo {
namespace {

using Json = nlohmann::ordered_json;

std::string lines_up_to(const std::filesystem::path& path, int64_t iteration) {
  std::ifstream file(path);
  std::string kept;
  for (std::string line; iteration > 0 && std::getline(file, line);) {
    const Json entry = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!entry.is_object() || entry.value("iteration", iteration + 1) > iteration) break;
    kept += line + "\n";
  }
  return kept;
}

}  // namespace

TrainingLog::TrainingLog(bool leads, const std::filesystem::path& folder, int64_t iteration)
    : leads_(leads) {
  if (!leads_) return;
  const std::filesystem::path path = folder / "metrics.json";
  const std::string kept = lines_up_to(path, iteration);
  metrics_.open(path);
  metrics_ << kept << std::flush;
  OSLO_CHECK_AS(file, metrics_.good(), printable_path(path), " cannot be written");
}

void TrainingLog::say(const std::string& line) const {
  if (leads_) std::cout << line << std::endl;
}

void TrainingLog::batch_ends(const TrainedBatch& batch, int data_ranks) {
  ++pace_.batches;
  pace_.labels += batch.labels * data_ranks;
}

void TrainingLog::iteration(const Training& training, int64_t global_batch, double loss,
                            double rate) {
  if (!leads_) return;
  write({{"iteration", training.steps},
         {"consumed_samples", training.steps * global_batch},
         {"total_loss", loss},
         {"lr", rate}});
  pace_.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  std::ostringstream line;
  line << "iteration " << training.steps << "/" << training.max_steps << "  "
       << progress_line(progress_of(training, pace_, loss), /*bar=*/false) << "  lr " << rate;
  say(line.str());
}

void TrainingLog::evaluation(const Training& training, double loss, int64_t samples) {
  if (!leads_) return;
  write({{"iteration", training.steps}, {"eval_loss", loss}, {"eval_samples", samples}});
  std::ostringstream line;
  line << "evaluation at iteration " << training.steps << "  loss " << loss << "  of " << samples
       << " samples";
  say(line.str());
}

void TrainingLog::write(const Json& line) {
  metrics_ << line.dump() << std::endl;
}

}  // namespace oslo
