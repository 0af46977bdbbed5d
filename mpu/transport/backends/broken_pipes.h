#pragma once

namespace oslo {

/// From now on a write to a socket whose other end has gone is an error of that write, which names
/// the rank, instead of SIGPIPE, which ends this process without a word: Gloo and c10d's store
/// write without MSG_NOSIGNAL, and Python, which they were made for, ignores the signal. Leaves a
/// program alone that handles it in a way of its own. It is the process's setting, as there is none
/// for a thread that others start.
void make_broken_pipes_errors();

}  // namespace oslo
