#pragma once

#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include "oslo_cpp/exported/file/document.h"

namespace oslo::exported {

// torch.export writes types by numbers of its own (torch/_export/serde/schema.py), which are not
// those of LibTorch's enumerations. Each throws `Error` for a number that this version does not
// know, or that no operator here takes.

c10::ScalarType scalar_type_of(const Document& code);
c10::Layout layout_of(const Document& code);
c10::MemoryFormat memory_format_of(const Document& code);
c10::Device device_of(const Document& device);

}  // namespace oslo::exported
