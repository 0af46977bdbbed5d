// Programs that the repository holds at each stage of ZeRO, beside replicas in LibTorch alone.
#include "tests/exported_model_test/exported_entries.h"
#include "tests/support/zero_catalogue.h"

namespace catalogue {
namespace {

/// In the types that Python wrote. One input of `mlp` is no batch, and `twice` has six rows.
INSTANTIATE_TEST_SUITE_P(Exported, AtAStage,
                         testing::ValuesIn(at_stages(
                             {{mlp, {.unread = {"up"}, .fixed_size = true, .dtype = {}}},
                              {conv, {.dtype = {}}},
                              {gpt2, {.dtype = {}}},
                              {vit, {.dtype = {}}},
                              {twice, {.again = {"mix", "norm"}, .fixed_size = true, .dtype = {}}},
                              {depth, {.unread = {"patches"}, .dtype = {}}}},
                             18)),
                         zero_case_name);

}  // namespace
}  // namespace catalogue
