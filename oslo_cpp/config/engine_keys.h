#pragma once

#include <string>
#include <vector>

#include "oslo_cpp/config/config_values.h"

namespace oslo {

/// Colossal-AI's gradient handlers: the types that "gradient_handler" may name.
std::vector<std::string> gradient_handler_names();

/// Throws for a handler of what the library does not do yet.
void check_handlers(const EngineKeys& keys);

/// Throws where handlers are named and none of them averages gradients over data replicas, of which
/// there are several. In a pipeline the schedule averages them.
void check_handlers_average(const EngineKeys& keys, const ParallelSizes& sizes);

/// Throws, with the line to write, for what an engine would do: a program without one has its own
/// loop, and in it the keys would have nobody who acts on them.
void check_no_engine_keys(const EngineKeys& keys);

}  // namespace oslo
