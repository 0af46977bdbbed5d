#pragma once

namespace oslo {

/// LibTorch's flight recorder is one for the process, and not safe for groups that several threads
/// use at once: recordWithResetEnabled inserts into its map of groups before it takes its lock.
/// Ranks that are threads do so, and so does a rank whose groups between hosts have a thread of
/// their own. Loading this library switches it off, before LibTorch reads how large it is to be,
/// unless TORCH_FR_BUFFER_SIZE is set.
///
/// Switches it off even then: what runs ranks as threads has to.
void switch_off_flight_recorder();

}  // namespace oslo
