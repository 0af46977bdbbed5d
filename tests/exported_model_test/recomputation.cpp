// Exported programs with recomputation in the config: one device runs the same program.
#include "tests/exported_model_test/exported_entries.h"
#include "tests/support/recomputation_catalogue.h"

namespace catalogue {
namespace {

INSTANTIATE_TEST_SUITE_P(Exported, Recomputed, testing::ValuesIn(recomputed({conv, gpt2, vit}, 36)),
                         recomputed_case_name);
INSTANTIATE_TEST_SUITE_P(ExportedWhole, Recomputed,
                         testing::ValuesIn(recomputed({mlp, twice, depth}, 2, in_one_part)),
                         recomputed_case_name);

}  // namespace
}  // namespace catalogue
