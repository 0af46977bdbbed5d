#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace oslo {

/// How long something takes by how much of it there is, as measured at some amounts. Between them a
/// straight line in logarithms; below the first what that took, beyond the last in proportion.
struct RateCurve {
  std::vector<std::pair<double, double>> points;  ///< {amount, seconds}, both ascending

  /// 0 for a curve without points.
  double seconds(double amount) const;
};

/// What this machine needs for what a training step is made of; every rank is given the same. Made
/// by measure_rates.h, kept by rates_file.h. Times are those of one rank's threads.
struct Rates {
  std::string machine;   ///< what they were measured on; rates of another are not taken
  double graph = 0;      ///< seconds that autograd adds to an operator, in each direction
  double placed = 0;     ///< seconds that a placed value adds to an operator, in each direction
  double in_a_step = 1;  ///< an operator's time among others, when caches are cold, over that alone
  RateCurve multiply;    ///< by floating-point operations, of products of square float matrices
  RateCurve copy;        ///< by bytes read and written, of an addition
  RateCurve function;    ///< by bytes read and written, of gelu: operators that compute a function
  RateCurve collective;  ///< by bytes that a rank receives, of all-reduces

  /// Of no machine: those of a core of 2022 and shared memory, in round numbers.
  static Rates nominal();

  nlohmann::json to_json() const;
  /// Throws, naming `where`, when this is not what `to_json` gave.
  static Rates from_json(const nlohmann::json& json, const std::string& where);
};

}  // namespace oslo
