#include "mpu/transport/backends/broken_pipes.h"

#include <csignal>

namespace oslo {

void make_broken_pipes_errors() {
  struct sigaction now = {};
  if (::sigaction(SIGPIPE, nullptr, &now) != 0) return;
  if ((now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL) return;
  struct sigaction ignored = {};
  ignored.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignored, nullptr);
}

}  // namespace oslo
