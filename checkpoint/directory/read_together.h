#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "mpu/world/world.h"

namespace oslo {

/// What a rank does to read a folder that all ranks read.
struct SharedReading {
  /// Opens what is there now. Returns what must be the same on all ranks.
  std::function<std::string()> open;
  /// Whether what `open` returned tells the contents. Where it does not, ranks have the same only
  /// if what each of them opened is still there when all have.
  std::function<bool()> tells_contents;
  /// Whether what was opened is still what is there.
  std::function<bool()> in_place;
  /// Reads from what was opened. It may be called again, and begins from nothing each time.
  std::function<void()> read;
  /// Whether nobody has written into what was opened since. Asked behind `read`, which else may
  /// have taken some of it before and some after: hashes are of before it.
  std::function<bool()> is_as_opened;
};

/// Reads one and the same folder on every rank while others may save there: all begin again where
/// they opened different ones, where one could not read what has been replaced meanwhile, or where
/// another program wrote into a file that one of them read.
/// Collective over the world, by its store; succeeds on every rank or throws the same `Error` on
/// every rank. Ranks that see different folders although nobody replaces them are told that they
/// "see different checkpoints at" `path`; `topic` names the purpose.
void read_together(const World& world, const std::string& topic, const std::filesystem::path& path,
                   const SharedReading& reading);

/// The same on this process alone.
void read_alone(const std::filesystem::path& path, const SharedReading& reading);

}  // namespace oslo
