#pragma once

namespace oslo {

/// Takes `--local_rank=N` or `--local-rank=N` out of a program's arguments: DeepSpeed's launcher
/// puts it before the program's own, and so does `python -m torch.distributed.launch` without
/// `--use-env`, where the program's own parser would not know it. Both say the same in LOCAL_RANK,
/// which is what `World::from_environment` reads. Call it first in `main`:
///
///   int main(int argc, char** argv) {
///     oslo::drop_local_rank(argc, argv);
///
/// `argc` and `argv` are changed in place; without that argument nothing is. Only the first
/// argument is looked at, as these launchers put it there: a later one is the program's own.
/// Throws `Error` (config) where its number is not that of LOCAL_RANK, or where that is not set.
void drop_local_rank(int& argc, char** argv);

}  // namespace oslo
