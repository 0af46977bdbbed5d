#pragma once

namespace oslo {

class Call;

/// What an operator does with the placed values it is called on.
using Rule = void (*)(Call&);

}  // namespace oslo
