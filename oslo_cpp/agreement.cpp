#include "oslo_cpp/agreement.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <mutex>
#include <sstream>

#include "mpu/agreement.h"
#include "mpu/error.h"
#include "mpu/rank_check.h"
#include "mpu/text.h"
#include "parallelizers/deferred/content.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

/// One line a parameter and buffer: name, shape and dtype; then the kind of device.
std::string structure_of(const ModelView& model) {
  std::ostringstream text;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    // Of one that an earlier initialize cut, the whole: parts may differ.
    const Mark* mark = mark_of(tensor);
    const auto sizes = tensor.sizes();
    text << name << " "
         << (mark == nullptr ? c10::str(sizes)
                             : c10::str(c10::IntArrayRef(mark->layout->global_sizes(sizes)), " ",
                                        mark->layout->to_string()))
         << " " << tensor.dtype().name() << "\n";
  };
  for (const ParameterView& parameter : model.parameters()) {
    add(parameter.path, parameter.registered);
  }
  for (const BufferView& buffer : model.buffers()) add(buffer.path, buffer.tensor);
  if (!model.parameters().empty()) {
    // Digests of values are those of one kind of device.
    const auto type = model.parameters().front().registered.device().type();
    text << "on " << c10::DeviceTypeName(type, /*lower_case=*/true) << "\n";
  }
  return text.str();
}

/// One line a parameter in use and a buffer: name and a hash of its bytes, or of what will compute
/// them. What an earlier
/// initialize cut was compared by that.
std::string values_of(const ModelView& model) {
  std::ostringstream text;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (mark_of(tensor) != nullptr) return;
    const bool deferred = is_deferred(tensor);
    text << name << (deferred ? " (deferred, hash " : " (hash ") << std::hex
         << (deferred ? recipe_digest(tensor) : content_digest(tensor)) << ")\n";
  };
  for (const NamedTensor& parameter : model.in_use()) {
    add(parameter.name, parameter.tensor);
  }
  for (const BufferView& buffer : model.buffers()) add(buffer.path, buffer.tensor);
  return text.str();
}

}  // namespace

void agree_on_model(const World& world, const RankGrid& grid, const ModelView& model) {
  if (world.size() == 1) return;
  agree_on_text(world, "initialize: the model", structure_of(model),
                "build the same model on every rank");
  agree_on_text(
      world, "initialize: the initial value", values_of(model),
      "call torch::manual_seed with one seed before building the model, or load the same file",
      grid.groups("model"));
}

void agree_on_generators(const World& world, const RankGrid& grid,
                         const std::vector<at::Generator>& generators) {
  if (grid.size("model") == 1) return;
  std::ostringstream text, states;
  text << ::getpid();
  for (at::Generator generator : generators) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    text << "/" << static_cast<const void*>(generator.unsafeGetGeneratorImpl());
    // Without the device's number, which differs between ranks.
    states << (states.tellp() > 0 ? ", " : "")
           << c10::DeviceTypeName(generator.device().type(), /*lower_case=*/true) << " (state "
           << std::hex << content_digest(generator.get_state()) << std::dec << ")";
  }
  text << '\n' << states.str();
  world.decide("the states of the generators", text.str(), [&](const auto& texts) {
    const auto owner_of = [&](int rank) { return first_line(texts[rank]); };
    const auto state_of = [&](int rank) { return texts[rank].substr(texts[rank].find('\n') + 1); };
    for (const auto& ranks : grid.groups("model")) {
      const int first = ranks[0];
      for (const int rank : ranks) {
        // Ranks that are threads of one process draw from the same generator.
        if (owner_of(rank) == owner_of(first) || state_of(rank) == state_of(first)) continue;
        fail("initialize: the state of the default generator differs between ranks: rank ", first,
             " has ", state_of(first), ", rank ", rank, " has ", state_of(rank),
             "; the ranks of one model draw the same numbers (dropout, initial values): call "
             "torch::manual_seed with one seed on them before initialize (data replicas may have "
             "seeds of their own)");
      }
    }
    return "";
  });
}

}  // namespace oslo
