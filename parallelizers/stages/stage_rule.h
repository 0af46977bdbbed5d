#pragma once

#include <vector>

namespace oslo {

/// The stage of each of `layers` layers by LiBai's rule, in order: about as many on each stage, and
/// of 4 stages and more fewer on the last one, which has the head. 24 layers on 4 stages are 6, 7,
/// 7, 4; 7 on 3 are 2, 2, 3. Of `layers` at least as many as `stages`.
std::vector<int> automatic_stages(int layers, int stages);

}  // namespace oslo
