#pragma once

/// For what the engine moves a value: the `Asker::purpose` (mpu/base/ledger.h) of what it
/// communicates, forward and backward. Who looks at the counts may tell by it why they are.
namespace oslo::purpose {
inline constexpr const char* kGather = "gather";    ///< parts are joined
inline constexpr const char* kPlanned = "planned";  ///< the same, as a weight's layout has it
inline constexpr const char* kRecut = "recut";      ///< parts get other owners
inline constexpr const char* kRing = "ring";        ///< parts go round, from rank to rank
inline constexpr const char* kWrite = "write";    ///< the same, to be written where nothing is cut
inline constexpr const char* kSplit = "split";    ///< of a whole value each rank keeps its part
inline constexpr const char* kCopy = "copy";      ///< each rank uses a whole value its own way
inline constexpr const char* kReduce = "reduce";  ///< a partial sum ends
inline constexpr const char* kScatter = "scatter";  ///< a partial sum ends, in parts
}  // namespace oslo::purpose
