#include <oslo_cpp/oslo.h>

#include <iostream>

// Alone, as no launcher started it: a world of one rank, whose values are ordinary tensors.
int main() {
  const oslo::World world = oslo::World::from_environment();
  const at::Tensor x = at::ones({2, 3});
  if (world.size() != 1 || world.rank() != 0 || oslo::is_placed(x)) {
    std::cerr << "expected a world of one rank, got rank " << world.rank() << " of " << world.size()
              << "\n";
    return 1;
  }
  std::cout << "package works: sum " << oslo::full_tensor(x).sum().item<float>() << "\n";
  return 0;
}
