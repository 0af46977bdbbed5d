#include "mpu/launch/local_rank_argument.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "mpu/base/error.h"

namespace oslo {

void drop_local_rank(int& argc, char** argv) {
  if (argc < 2) return;
  const std::string_view word = argv[1];
  const bool is_it = word.starts_with("--local_rank=") || word.starts_with("--local-rank=");
  if (!is_it) return;
  const std::string_view given = word.substr(word.find('=') + 1);
  const char* const known = std::getenv("LOCAL_RANK");
  OSLO_CHECK_AS(config, known != nullptr && *known != '\0', word,
                " is among the arguments but LOCAL_RANK is not set; set it, with RANK and "
                "WORLD_SIZE, as the launcher does that gives this argument");
  OSLO_CHECK_AS(config, given == known, word, " contradicts LOCAL_RANK=", known,
                "; leave the argument out, or unset the variable");
  // With the null pointer behind the last one.
  std::copy(argv + 2, argv + argc + 1, argv + 1);
  --argc;
}

}  // namespace oslo
