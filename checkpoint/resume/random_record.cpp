#include "checkpoint/resume/random_record.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <cstring>
#include <mutex>
#include <optional>

#include "checkpoint/formats/safetensors.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

constexpr char kSharded[] = "sharded";

struct NamedGenerator {
  std::string name;
  at::Generator generator;
};

std::vector<NamedGenerator> generators_of(const ModelState& state, const MPU& mpu) {
  std::vector<NamedGenerator> generators = {{"cpu", at::detail::getDefaultCPUGenerator()},
                                            {"replicated", mpu.random().replicated()},
                                            {kSharded, mpu.random().sharded()}};
  for (const ModelState::Tensor& tensor : state.tensors) {
    if (!tensor.local.is_cuda()) continue;
    generators.push_back({"cuda", at::globalContext().defaultGenerator(tensor.local.device())});
    break;
  }
  return generators;
}

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

/// The first rank of the grid at a place along the data axis.
int first_rank_of(const RankGrid& grid, int data_rank) {
  int rank = 0;
  while (grid.coordinate("data", rank) != data_rank) ++rank;
  return rank;
}

}  // namespace

std::string random_states(const ModelState& state, const MPU& mpu) {
  std::string text;
  for (const auto& [name, generator] : generators_of(state, mpu)) {
    const at::Tensor bytes = state_of(generator).contiguous();
    text += c10::str(name, " ", bytes.nbytes(), "\n");
    text.append(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  }
  return text;
}

StateDict join_random_states(const std::vector<std::string>& texts) {
  StateDict all;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const std::string& text = texts[rank];
    for (size_t at = 0; at < text.size();) {
      const size_t space = text.find(' ', at), line = text.find('\n', space);
      const size_t size = std::stoull(text.substr(space + 1, line - space - 1));
      const at::Tensor bytes = at::empty({static_cast<int64_t>(size)}, at::kByte);
      std::memcpy(bytes.mutable_data_ptr(), text.data() + line + 1, size);
      all.insert(c10::str(rank, "/", text.substr(at, space - at)), bytes);
      at = line + 1 + size;
    }
  }
  return all;
}

RandomLoad::RandomLoad(const ModelState& state, const MPU& mpu, const CheckpointFolder& folder) {
  const std::optional<InputFile> contents = folder.find_file(kRandomName);
  OSLO_CHECK_AS(file, contents, "the checkpoint ", printable_path(folder.path()), " has no ",
                kRandomName,
                ": save it with SaveOptions().random_states(true), or load it with "
                "LoadOptions().random_states(false)");
  OSLO_CHECK_AS(file, folder.index().random_mesh, printable_path(folder.path()),
                " has no index that says which ranks its ", kRandomName, " is of");
  const SafetensorsFile file(*contents);
  const RankGrid& saved = *folder.index().random_mesh;
  const bool same = saved == mpu.grid();
  const int from = same ? mpu.world().rank()
                        : first_rank_of(saved, mpu.get_data_parallel_rank() % saved.size("data"));
  for (const auto& [name, generator] : generators_of(state, mpu)) {
    if (!same && name == kSharded) continue;
    const std::string key = c10::str(from, "/", name);
    if (!file.contains(key) && name == "cuda") continue;  // saved on ranks without a GPU
    const at::Tensor bytes = file.read(key);
    const at::Tensor now = state_of(generator);
    OSLO_CHECK_AS(file, bytes.scalar_type() == now.scalar_type() && bytes.sizes() == now.sizes(),
                  printable_path(file.path()), ": '", key, "' is ", bytes.scalar_type(), " ",
                  bytes.sizes(), ", the state of this LibTorch's generator ", now.scalar_type(),
                  " ", now.sizes());
    states_.emplace_back(generator, bytes);
  }
}

void RandomLoad::commit() {
  for (auto& [generator, bytes] : states_) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(bytes);
  }
}

}  // namespace oslo
