#pragma once

namespace oslo {

/// What this thread does while one that is `on` lives happens on the ranks of another pipeline
/// stage; here it is gone through for shapes alone. Collectives of groups then move nothing, as in
/// a dry run, and nobody counts them. Messages are not concerned.
class ForeignScope {
 public:
  explicit ForeignScope(bool on);
  ~ForeignScope();
  ForeignScope(const ForeignScope&) = delete;
  ForeignScope& operator=(const ForeignScope&) = delete;

  static bool active();

 private:
  bool outer_;
};

}  // namespace oslo
