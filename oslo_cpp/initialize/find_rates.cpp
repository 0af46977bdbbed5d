#include "oslo_cpp/initialize/find_rates.h"

#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "mpu/base/environment.h"
#include "mpu/world/agreement.h"
#include "parallelizers/plan/search/measure_rates.h"
#include "parallelizers/plan/search/rates_file.h"

namespace oslo {
namespace {

/// Ranks that `oslo plan` measures collectives between, as threads.
constexpr int kPlanThreads = 2;

/// What rank 0 needs not measure.
std::optional<Rates> known_rates(const World& world, const std::string& machine,
                                 const std::string& named) {
  const std::string file = named.empty() ? read_variable(Variable::rates).value_or("") : named;
  if (!file.empty()) return read_rates(file);
  if (!world.launched() && !world.plan_only()) return Rates::nominal();
  if (read_switch(Variable::measure).value_or(false)) return std::nullopt;
  return kept_rates(kept_rates_path(), machine);
}

/// What carries collectives of tensors on `device` between ranks of this grid: "shm", "gloo",
/// "nccl".
std::string carrier(const MPU& mpu, Transport transport, c10::Device device) {
  if (mpu.world().launched()) {
    const auto& group = mpu.tensor_group()->process_group();
    return (device.is_cpu() ? group->getDefaultBackend() : group->getBackend(device.type()))
        ->getBackendName();
  }
  if (transport != Transport::automatic) return to_string(transport);
  const std::string chosen = read_variable(Variable::backend).value_or("auto");
  return chosen == "auto" ? to_string(Transport::shared_memory) : chosen;
}

/// Between threads of this process, which `oslo plan` starts alone.
RateCurve between_threads(Transport transport) {
  RateCurve curve;
  run_as_threads(kPlanThreads, [&](const World& world) {
    const auto group = world.make_group("rates", {0, 1}, transport);
    const RateCurve measured = measure_collective(*group, c10::kCPU);
    if (world.rank() == 0) curve = measured;
  });
  return curve;
}

/// Between this rank and its neighbours on the tensor axis, all such groups at once as in training.
/// Of one rank nothing is moved, and a file of rates must say something.
RateCurve between_ranks(const MPU& mpu, Transport transport, c10::Device device) {
  if (mpu.tensor_group()->size() == 1) return Rates::nominal().collective;
  const auto group = mpu.world().make_group("rates", mpu.tensor_group()->ranks(), transport);
  return measure_collective(*group, device);
}

}  // namespace

Rates find_rates(const MPU& mpu, Transport transport, c10::Device device,
                 const std::string& named) {
  const World& world = mpu.world();
  const int ranks = world.plan_only() ? kPlanThreads : mpu.tensor_group()->size();
  const std::string machine = machine_text(device, carrier(mpu, transport, device), ranks);
  std::string text = result_of_first(world, "the rates", [&] {
    std::optional<Rates> known;
    if (world.rank() == 0 || !world.launched()) known = known_rates(world, machine, named);
    return known ? known->to_json().dump() : "";
  });
  if (text.empty()) {
    if (world.rank() == 0) {
      std::cerr << "oslo: measuring once what operators and collectives take here (" + machine +
                       "), about two seconds\n";
    }
    const RateCurve collective =
        world.plan_only() ? between_threads(transport) : between_ranks(mpu, transport, device);
    text = result_of_first(world, "the rates", [&]() -> std::string {
      if (world.rank() != 0) return "";
      Rates rates = measure_operators(device);
      rates.collective = collective;
      rates.machine = machine;
      const std::string path = kept_rates_path();
      if (!keep_rates(path, rates)) {
        std::cerr << "oslo: the rates cannot be kept" + (path.empty() ? "" : " in " + path) +
                         "; the next start measures again\n";
      }
      return rates.to_json().dump();
    });
  }
  return Rates::from_json(nlohmann::json::parse(text), "the rates of rank 0");
}

}  // namespace oslo
