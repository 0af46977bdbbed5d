// What libFuzzer calls. The reader is the one that FUZZ_READER names.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>

#include "tests/reader_fuzz_test/fuzzer/json_mutation.h"
#include "tests/reader_fuzz_test/readers.h"

namespace {

const std::string& chosen() {
  static const std::string name = [] {
    const char* asked = std::getenv("FUZZ_READER");
    if (asked == nullptr || oslo::fuzz::readers().count(asked) == 0) {
      std::fputs("FUZZ_READER names no reader\n", stderr);
      std::exit(2);
    }
    return std::string(asked);
  }();
  return name;
}

bool is_document() {
  return chosen() == "checkpoint_index" || chosen() == "exported_program";
}

}  // namespace

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const oslo::fuzz::Reader& read = oslo::fuzz::readers().at(chosen());
  read({reinterpret_cast<const char*>(data), size});
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  std::mt19937 dice(seed);
  // One change in eight is one of bytes, for the parser.
  if (!is_document() || dice() % 8 == 0) return LLVMFuzzerMutate(data, size, most);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  nlohmann::json document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return LLVMFuzzerMutate(data, size, most);
  for (size_t changes = 1 + dice() % 3; changes > 0; --changes) oslo::fuzz::mutate(document, dice);
  const std::string changed =
      document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (changed.size() > most) return LLVMFuzzerMutate(data, size, most);
  std::copy(changed.begin(), changed.end(), data);
  return changed.size();
}
