// Saves, asynchronous saves and loads of a GPT with AdamW's moments, beside a plain copy of the
// same files: read, write and fsync, each rank its own.
//
//   oslo run -n 2 bench_checkpoint --folder /tmp/there
//
// Rank 0 prints one line of JSON: bytes, the seconds of each, and the most memory that rank 0 had
// above what it held. The folder is emptied afterwards.
#include <fcntl.h>
#include <oslo_cpp/oslo.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/ranks/model.h"
#include "benchmarks/ranks/peer_plan.h"
#include "benchmarks/ranks/rank_program.h"

namespace {

namespace fs = std::filesystem;

struct Options {
  int64_t hidden = 768, layers = 4, heads = 4;
  int repeats = 5;
  std::string folder;
};

/// Of /proc/self/status, in bytes.
int64_t resident(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name, 0) == 0) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

void forget_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

void copy_and_sync(const fs::path& from, const fs::path& to) {
  const int in = ::open(from.c_str(), O_RDONLY), out = ::open(to.c_str(), O_WRONLY | O_CREAT, 0666);
  std::vector<char> buffer(1 << 20);
  for (ssize_t count = 0; (count = ::read(in, buffer.data(), buffer.size())) > 0;) {
    if (::write(out, buffer.data(), count) != count) throw std::runtime_error("copy failed");
  }
  if (::fsync(out) != 0) throw std::runtime_error("fsync failed");
  ::close(in);
  ::close(out);
}

class Measured {
 public:
  explicit Measured(const oslo::World& world) : world_(world) {}

  void time(const std::string& what, const std::function<void()>& call) {
    const int64_t held = resident("VmRSS:");
    forget_peak();
    world_.barrier();
    const auto begin = std::chrono::steady_clock::now();
    call();
    world_.barrier();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    seconds_[what].push_back(seconds.count());
    peaks_[what] = std::max(peaks_[what], resident("VmHWM:") - held);
  }
  nlohmann::json json() const {
    nlohmann::json json = seconds_;
    json["peaks"] = peaks_;
    return json;
  }

 private:
  const oslo::World& world_;
  std::map<std::string, std::vector<double>> seconds_;
  std::map<std::string, int64_t> peaks_;
};

void run(const Options& options) {
  at::set_num_threads(1);
  torch::manual_seed(0);
  const oslo::World world = oslo::World::from_environment();
  constexpr int64_t kWords = 512, kPositions = 64;
  bench::Gpt model(kWords, kPositions, options.hidden, options.heads, options.layers);
  oslo::InitializeOptions how;
  how.world = world;
  const oslo::ParallelModel parallel =
      oslo::initialize(model, bench::cut_like_the_peer(world.size()), how);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  for (const torch::Tensor& p : model->parameters()) p.mutable_grad() = torch::ones_like(p);
  optimizer.step();
  optimizer.zero_grad();

  const fs::path target = fs::path(options.folder) / "ours", copy = target.string() + ".copy";
  const auto clear = [&] {
    world.barrier();
    if (world.rank() == 0) {
      fs::remove_all(target);
      fs::remove_all(copy);
      fs::create_directories(copy);
    }
    world.barrier();
  };
  const std::string own = c10::str("pytorch_model_tp_", world.rank(), "_pp_0.safetensors");
  const auto to_save = oslo::SaveOptions().optimizer(&optimizer);
  Measured measured(world);
  int64_t bytes = 0;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    clear();
    measured.time("save", [&] { parallel.save_parallelized(target, to_save); });
    measured.time("copy", [&] { copy_and_sync(target / own, copy / own); });
    measured.time("load", [&] {
      parallel.from_parallelized(target, oslo::LoadOptions().optimizer(&optimizer));
    });
    bytes = 0;
    for (const auto& entry : fs::directory_iterator(target)) bytes += entry.file_size();
    clear();
    measured.time("asynchronous", [&] {
      std::shared_ptr<oslo::PendingSave> saving;
      measured.time("stall", [&] { saving = parallel.save_async(target, to_save); });
      saving->wait();
    });
  }
  world.barrier();
  if (world.rank() == 0) {
    fs::remove_all(target);
    fs::remove_all(copy);
    nlohmann::json result = measured.json();
    result["bytes"] = bytes;
    std::cout << result << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Saves and loads of a GPT with AdamW's moments");
  app.add_option("--hidden", options.hidden)->capture_default_str();
  app.add_option("--layers", options.layers)->capture_default_str();
  app.add_option("--repeats", options.repeats)->capture_default_str();
  app.add_option("--folder", options.folder, "Where to save; on the disk that is meant")
      ->required();
  CLI11_PARSE(app, argc, argv);
  return bench::outcome_of([&] { run(options); });
}
