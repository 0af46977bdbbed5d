#include "mpu/base/foreign_scope.h"

namespace oslo {
namespace {

thread_local bool foreign = false;

}  // namespace

ForeignScope::ForeignScope(bool on) : outer_(foreign) {
  foreign = foreign || on;
}

ForeignScope::~ForeignScope() {
  foreign = outer_;
}

bool ForeignScope::active() {
  return foreign;
}

}  // namespace oslo
