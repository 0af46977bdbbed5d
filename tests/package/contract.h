#pragma once

#include <string>

namespace oslo {
class World;
}

/// Uses every name that a program may rely on; throws where one does not do what it says.
void use_the_contract(const oslo::World& world, const std::string& folder);
