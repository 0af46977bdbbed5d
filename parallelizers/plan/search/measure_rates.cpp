#include "parallelizers/plan/search/measure_rates.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <numeric>

#include "mpu/transport/backends/cuda_support.h"
#include "mpu/world/world.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/plan/dry/work_meter.h"

namespace oslo {
namespace {

using Clock = std::chrono::steady_clock;

/// For each point of a curve.
constexpr double kSecondsAPoint = 0.02;
constexpr int kLeastRuns = 3, kMostRuns = 400;

/// The median of how long `run` takes, after some runs to warm up.
double median_seconds(c10::Device device, const std::function<void()>& run, int runs = 0) {
  const auto finish = [&] {
    if (!device.is_cpu()) {
      const c10::impl::VirtualGuardImpl guard(device.type());
      guard.synchronizeDevice(device.has_index() ? device.index() : guard.getDevice().index());
    }
  };
  const auto timed = [&] {
    const auto start = Clock::now();
    run();
    finish();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  timed();
  if (runs == 0) {
    const double once = std::max(1e-7, std::min(timed(), timed()));
    runs = std::clamp(static_cast<int>(kSecondsAPoint / once), kLeastRuns, kMostRuns);
  }
  std::vector<double> seconds(runs);
  for (double& each : seconds) each = timed();
  std::nth_element(seconds.begin(), seconds.begin() + runs / 2, seconds.end());
  return seconds[runs / 2];
}

/// Noise must not make more of something quicker than less of it.
void add_point(RateCurve& curve, double amount, double seconds) {
  if (!curve.points.empty()) seconds = std::max(seconds, curve.points.back().second);
  curve.points.emplace_back(amount, std::max(seconds, 1e-9));
}

/// Forward and backward of a chain of small additions, for an operator and direction.
double chain_seconds(const at::Tensor& x) {
  constexpr int kLength = 64;
  const double both = median_seconds(c10::kCPU, [&] {
    at::Tensor y = x;
    for (int i = 0; i < kLength; ++i) y = y.add(1);
    y.sum().backward();
  });
  return both / (2 * kLength);
}

/// A transformer's perceptron, layer by layer; its hidden width is what this rank computes of it.
class Perceptrons {
 public:
  Perceptrons(int64_t rows, int64_t width, int64_t hidden, const at::TensorOptions& options)
      : input_(at::full({rows, width}, 0.5, options)) {
    for (Layer& layer : layers_) {
      layer.scale = at::full({width}, 1, options);
      layer.shift = at::full({width}, 0, options);
      layer.up = at::full({hidden, width}, 0.01, options);
      layer.up_bias = at::full({hidden}, 0, options);
      layer.down = at::full({width, hidden}, 0.01, options);
      layer.down_bias = at::full({width}, 0, options);
    }
    become_leaves();
  }

  /// The hidden layer over the mesh's ranks.
  void cut(const std::shared_ptr<Mesh>& mesh) {
    for (Layer& layer : layers_) {
      layer.up = distribute(layer.up.detach(), mesh, {Placement::shard(0)});
      layer.up_bias = distribute(layer.up_bias.detach(), mesh, {Placement::shard(0)});
      layer.down = distribute(layer.down.detach(), mesh, {Placement::shard(1)});
    }
    become_leaves();
  }

  at::Tensor forward() const {
    at::Tensor x = input_;
    for (const Layer& layer : layers_) {
      const at::Tensor y = at::layer_norm(x, {x.size(-1)}, layer.scale, layer.shift);
      const at::Tensor hidden = at::gelu(at::linear(y, layer.up, layer.up_bias));
      x = x + at::linear(hidden, layer.down, layer.down_bias);
    }
    return x.sum();
  }

  void step() {
    for (Layer& layer : layers_) {
      for (at::Tensor* weight : layer.weights()) weight->mutable_grad().reset();
    }
    forward().backward();
  }

 private:
  struct Layer {
    at::Tensor scale, shift, up, up_bias, down, down_bias;
    std::array<at::Tensor*, 6> weights() {
      return {&scale, &shift, &up, &up_bias, &down, &down_bias};
    }
  };

  void become_leaves() {
    for (Layer& layer : layers_) {
      for (at::Tensor* weight : layer.weights()) *weight = weight->detach().requires_grad_();
    }
  }

  std::array<Layer, 4> layers_;
  at::Tensor input_;
};

/// How much longer a step of some layers takes than its operators' rates say: between two uses of
/// a weight the others have been through the caches, and gradients arrive in leaves.
double slowdown_in_a_step(const Rates& rates, c10::Device device, int64_t width) {
  Perceptrons layers(128, width, 4 * width, at::TensorOptions(at::kFloat).device(device));
  const double measured = median_seconds(device, [&] { layers.step(); });
  const WorkMeter meter(rates);
  layers.forward();
  return measured / meter.work().seconds;
}

/// What a cut adds to an operator on it, in each direction, where kernels take no time.
double seconds_of_a_cut() {
  const auto group = World::fake(0, 2).make_group("rates", {0, 1});
  const auto mesh = std::make_shared<Mesh>(std::vector{group});
  Perceptrons plain(2, 8, 8, at::kFloat), parts(2, 8, 16, at::kFloat);
  parts.cut(mesh);
  const double alone = median_seconds(c10::kCPU, [&] { plain.step(); });
  const double together = median_seconds(c10::kCPU, [&] { parts.step(); });
  const Rates any = Rates::nominal();
  const WorkMeter meter(any);
  parts.forward();
  return std::max(0.0, together - alone) / (2 * static_cast<double>(meter.work().placed));
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with("model name")) continue;
    return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "unknown processor";
}

/// Two kinds of GPU differ more than a GPU from itself.
std::string device_text(c10::Device device) {
  const CudaSupport* const support = cuda_support();
  if (!device.is_cuda() || support == nullptr) return c10::DeviceTypeName(device.type(), true);
  return support->device_name(device.has_index()
                                  ? device.index()
                                  : c10::impl::VirtualGuardImpl(device.type()).getDevice().index());
}

}  // namespace

Rates measure_operators(c10::Device device) {
  Rates rates;
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device(device);
  {
    const c10::AutoGradMode no_grad(false);
    for (const int64_t n : {4, 16, 64, 128, 256, 512, 1024}) {
      const at::Tensor a = at::full({n, n}, 0.5, options), b = at::full({n, n}, 0.25, options);
      const auto size = static_cast<double>(n);
      add_point(rates.multiply, 2 * size * size * size,
                median_seconds(device, [&] { at::mm(a, b); }));
    }
    for (const int64_t n : {16, 1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 22}) {
      const at::Tensor a = at::full({n}, 0.5, options), b = at::full({n}, 0.25, options);
      const auto bytes = 4 * static_cast<double>(n);
      add_point(rates.copy, 3 * bytes, median_seconds(device, [&] { at::add(a, b); }));
      add_point(rates.function, 2 * bytes, median_seconds(device, [&] { at::gelu(a); }));
    }
  }
  const c10::AutoGradMode grad(true);
  const at::Tensor x = at::full({16}, 0.5).set_requires_grad(true);
  const double plain = chain_seconds(x);
  const double alone = rates.copy.points.front().second;
  rates.graph = std::max(0.0, plain - (device.is_cpu() ? alone : plain));
  rates.placed = seconds_of_a_cut();
  // Of small operators and of large ones, between which the factor changes little.
  rates.in_a_step = std::max(1.0, std::sqrt(slowdown_in_a_step(rates, device, 64) *
                                            slowdown_in_a_step(rates, device, 512)));
  return rates;
}

RateCurve measure_collective(Group& group, c10::Device device) {
  RateCurve curve;
  const auto ranks = static_cast<double>(group.size());
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device(device);
  const std::array<std::pair<int64_t, int>, 6> sizes{
      {{64, 100}, {1 << 10, 100}, {1 << 13, 50}, {1 << 16, 30}, {1 << 18, 10}, {1 << 21, 5}}};
  for (const auto& [n, runs] : sizes) {
    at::Tensor tensor = at::zeros({n}, options);
    const double seconds = median_seconds(
        device, [&] { tensor = group.all_reduce(tensor); }, runs);
    add_point(curve, 2 * (ranks - 1) / ranks * 4 * static_cast<double>(n), seconds);
  }
  return curve;
}

std::string machine_text(c10::Device device, const std::string& transport, int ranks) {
  std::string text = processor() + ", " + at::get_cpu_capability();
  if (!device.is_cpu()) text += ", " + device_text(device);
  const int threads = at::get_num_threads();
  return c10::str(text, ", LibTorch " TORCH_VERSION ", ", threads,
                  threads == 1 ? " thread, " : " threads, ", transport, " over ", ranks, " ranks");
}

}  // namespace oslo
