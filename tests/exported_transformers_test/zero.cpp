// Models of Python's transformers at each stage of ZeRO, beside replicas in LibTorch alone.
#include "tests/exported_model_test/exported_entry.h"
#include "tests/exported_transformers_test/exported_families.h"
#include "tests/support/zero_catalogue.h"

namespace catalogue {
namespace {

Entry exported(const char* family, const oslo::test::Loss& loss = oslo::test::cross_entropy) {
  return oslo::test::exported_entry(family, loss, {}, oslo::test::exported);
}

Entry gpt2() {
  return exported("gpt2");
}
/// The loss is the first of the model's results.
Entry gpt2_labels() {
  return exported("gpt2_labels", [](const auto& output, const auto& /*target*/) { return output; });
}
Entry llama() {
  return exported("llama");
}
Entry bert() {
  return exported("bert");
}
Entry t5() {
  return exported("t5");
}
Entry mixtral() {
  return exported("mixtral");
}

ZeroEntry as_written(Entry (*entry)()) {
  return {entry, {.dtype = {}}, oslo::test::transformers_are_there};
}

INSTANTIATE_TEST_SUITE_P(Transformers, AtAStage,
                         testing::ValuesIn(at_stages({as_written(gpt2), as_written(gpt2_labels),
                                                      as_written(llama), as_written(bert),
                                                      as_written(t5), as_written(mixtral)},
                                                     24)),
                         zero_case_name);

}  // namespace
}  // namespace catalogue
