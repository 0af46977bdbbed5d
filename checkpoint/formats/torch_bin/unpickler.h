#pragma once

#include <string>
#include <string_view>

#include "checkpoint/formats/tensors/state_dict.h"
#include "checkpoint/formats/torch_bin/storage_loader.h"

namespace oslo {

/// Runs `program`, the pickle (protocol 2) that `torch.save` writes for a state_dict, in a machine
/// that knows only what such a pickle needs: numbers, strings, tuples, lists, dicts, storages, and
/// the names OrderedDict, _rebuild_tensor_v2 and _v3, _rebuild_parameter, storage classes and
/// dtypes. Anything else throws `Error`, starting with `file` and naming the operation or name.
/// Every tensor is checked to lie inside its storage. Texts are not copied, and a program makes at
/// most 2^22 values, which bounds its memory by half a gigabyte.
StateDict unpickle_state_dict(std::string_view program, const std::string& file,
                              const StorageLoader& load_storage);

}  // namespace oslo
