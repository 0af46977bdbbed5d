#include "parallelizers/plan/dry/rates.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "mpu/base/error.h"

namespace oslo {
namespace {

RateCurve curve_of(const nlohmann::json& json, const std::string& name, const std::string& where) {
  RateCurve curve;
  curve.points = json.at(name).get<decltype(curve.points)>();
  OSLO_CHECK(!curve.points.empty(), where, ": \"", name, "\" has no points");
  std::pair<double, double> before{0, 0};
  for (const auto& point : curve.points) {
    const bool ascends = point.first > before.first && point.second > 0 &&
                         point.second >= before.second && std::isfinite(point.second) &&
                         std::isfinite(point.first);
    OSLO_CHECK(ascends, where, ": \"", name, "\" does not ascend at [", point.first, ", ",
               point.second, "]; it is a list of [amount, seconds]");
    before = point;
  }
  return curve;
}

}  // namespace

double RateCurve::seconds(double amount) const {
  if (points.empty()) return 0;
  if (amount <= points.front().first) return points.front().second;
  if (amount >= points.back().first) return points.back().second * amount / points.back().first;
  size_t next = 1;
  while (points[next].first < amount) ++next;
  const auto& [x0, y0] = points[next - 1];
  const auto& [x1, y1] = points[next];
  const double part = std::log(amount / x0) / std::log(x1 / x0);
  return y0 * std::exp(part * std::log(y1 / y0));
}

Rates Rates::nominal() {
  Rates rates;
  rates.machine = "nominal rates, of no machine: nothing was measured";
  rates.graph = 1e-6;
  rates.placed = 1e-6;
  rates.multiply.points = {{1e3, 2e-6}, {1e5, 5e-6}, {1e7, 200e-6}, {1e9, 20e-3}};
  rates.copy.points = {{1e3, 1e-6}, {1e5, 5e-6}, {1e7, 1e-3}};
  rates.function.points = {{1e3, 2e-6}, {1e5, 25e-6}, {1e7, 2.5e-3}};
  rates.collective.points = {{1e3, 6e-6}, {1e5, 30e-6}, {1e7, 3e-3}};
  return rates;
}

nlohmann::json Rates::to_json() const {
  return {{"machine", machine},
          {"graph", graph},
          {"placed", placed},
          {"in_a_step", in_a_step},
          {"multiply", multiply.points},
          {"copy", copy.points},
          {"function", function.points},
          {"collective", collective.points}};
}

Rates Rates::from_json(const nlohmann::json& json, const std::string& where) {
  try {
    Rates rates;
    rates.machine = json.at("machine").get<std::string>();
    rates.graph = json.at("graph").get<double>();
    rates.placed = json.at("placed").get<double>();
    rates.in_a_step = json.at("in_a_step").get<double>();
    OSLO_CHECK(rates.in_a_step >= 1 && std::isfinite(rates.in_a_step), where, ": \"in_a_step\" is ",
               rates.in_a_step, "; operators are no quicker in a step");
    OSLO_CHECK(rates.graph >= 0 && rates.placed >= 0, where, ": \"graph\" and \"placed\" are ",
               rates.graph, " and ", rates.placed, "; seconds are not below 0");
    rates.multiply = curve_of(json, "multiply", where);
    rates.copy = curve_of(json, "copy", where);
    rates.function = curve_of(json, "function", where);
    rates.collective = curve_of(json, "collective", where);
    return rates;
  } catch (const nlohmann::json::exception& error) {
    fail_as(ErrorKind::file, where, ": these are no rates: ", error.what());
  }
}

}  // namespace oslo
