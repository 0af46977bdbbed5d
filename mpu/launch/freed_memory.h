#pragma once

namespace oslo {

/// Has glibc's malloc keep what this process frees, for it to take again: blocks below 1 GiB are
/// no longer mapped and unmapped one by one, and the heap no longer shrinks. A training step frees
/// and takes the same blocks over and over, and pages that are mapped anew are filled with zeros
/// each time; `oslo run` asks for the same for its ranks, so that only programs of other launchers,
/// or of none, need to. Call it first in `main`, before the first tensor: blocks that are already
/// mapped stay so.
///
///   int main(int argc, char** argv) {
///     oslo::keep_freed_memory();
///
/// Resident memory then stays at its peak instead of falling between steps. Returns whether it has
/// changed anything: the environment goes before it (MALLOC_MMAP_THRESHOLD_,
/// MALLOC_TRIM_THRESHOLD_, MALLOC_TOP_PAD_, or `glibc.malloc.` in GLIBC_TUNABLES, all of which
/// `oslo run` and the user may have set), and without glibc it does nothing. Another allocator, by
/// LD_PRELOAD, is not asked. Of the whole process, and for any thread to call; costs nothing.
bool keep_freed_memory();

}  // namespace oslo
