#pragma once

#include <nlohmann/json.hpp>
#include <random>

namespace oslo::fuzz {

/// Changes one value of a document, in place: to another one of the same document, to one that
/// readers stumble over, to nothing; or gives an object another key. Changes of bytes hardly ever
/// leave a document that is JSON, and so do not come past the parser.
void mutate(nlohmann::json& document, std::mt19937& dice);

}  // namespace oslo::fuzz
