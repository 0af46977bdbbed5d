#include "mpu/transport/presence/pending.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "mpu/transport/presence/presence.h"

namespace oslo {

void wait_for(c10d::Work& work, std::string_view operation, const OperationLabel& label) {
  try {
    work.wait();
  } catch (const std::exception& error) {
    fail_operation(operation, label, error);
  }
}

void fail_operation(std::string_view operation, const OperationLabel& label,
                    const std::exception& error) {
  const std::string reason = first_line(message_of(error));
  // Shared memory sees processes end; of other transports the connections are closed first.
  const bool patient = dynamic_cast<const Error*>(&error) == nullptr;
  const std::string cause = label.presence ? label.presence->cause(patient) : "";
  // What this rank was told of itself (its operands, another operation than the others') is no
  // other rank's failure.
  const bool own = !patient && cause.empty();
  if (cause.empty() || reason.find(cause) != std::string::npos) {
    fail_as(own ? kind_of(error) : ErrorKind::peer, operation, label.where, label.suspects, reason);
  }
  // What shared memory says is what came of it: it may name a rank that failed with the first.
  fail_as(ErrorKind::peer, operation, label.where, label.suspects, cause,
          patient ? c10::str(" (", reason, ")") : "");
}

Pending::Pending(at::Tensor result) : written_(std::move(result)) {}

Pending::Pending(c10::intrusive_ptr<c10d::Work> work, at::Tensor written, const char* operation,
                 Label label)
    : work_(std::move(work)),
      written_(std::move(written)),
      operation_(operation),
      label_(std::move(label)) {}

Pending::Pending(Pending&& other) noexcept
    : work_(std::move(other.work_)),
      written_(std::move(other.written_)),
      operation_(other.operation_),
      label_(std::move(other.label_)),
      finish_(std::move(other.finish_)),
      input_(std::move(other.input_)),
      version_(other.version_),
      taken_(std::exchange(other.taken_, true)) {}

Pending& Pending::operator=(Pending&& other) noexcept {
  work_ = std::move(other.work_);
  written_ = std::move(other.written_);
  operation_ = other.operation_;
  label_ = std::move(other.label_);
  finish_ = std::move(other.finish_);
  input_ = std::move(other.input_);
  version_ = other.version_;
  taken_ = std::exchange(other.taken_, true);
  return *this;
}

Pending::~Pending() = default;

at::Tensor Pending::wait() {
  OSLO_CHECK(!taken_, "a started collective gives its result once; keep what wait() returned");
  taken_ = true;
  // NCCL gives no Work to a caller that waits: the operation is on the caller's own stream.
  if (work_) wait_for(*work_, operation_, *label_);
  OSLO_CHECK(
      !input_.defined() || input_._version() == version_, operation_, label_->where,
      ": its operand was written to before it was waited for; wait first, or give it a copy");
  input_.reset();
  at::Tensor result = std::move(written_);
  return finish_ ? finish_(std::move(result)) : result;
}

c10::intrusive_ptr<c10::ivalue::Future> Pending::future(const char* of) && {
  using c10::ivalue::Future;
  if (!work_) {
    std::vector<c10::Device> devices;
    if (!written_.device().is_cpu()) devices.push_back(written_.device());
    auto done = c10::make_intrusive<Future>(c10::TensorType::get(), std::move(devices));
    done->markCompleted(wait());
    return done;
  }
  taken_ = true;
  // What runs on a thread of the process group must not hold that group's last reference: neither
  // the label nor the result does.
  return work_->getFuture()->then(
      [written = std::move(written_), finish = std::move(finish_), label = label_,
       operation = c10::str(operation_, " ", of)](Future& done) -> c10::IValue {
        if (done.hasError()) {
          try {
            std::rethrow_exception(done.exception_ptr());
          } catch (const std::exception& error) {
            fail_operation(operation, *label, error);
          }
        }
        return finish ? finish(written) : written;
      },
      c10::TensorType::get());
}

bool Pending::done() const {
  return !work_ || work_->isCompleted();
}

Pending Pending::reading(const at::Tensor& input) && {
  if (work_ && !input.is_inference()) {
    input_ = input;
    version_ = input._version();
  }
  return Pending(std::move(*this));
}

Pending Pending::then(Finish finish) && {
  if (finish_) {
    finish = [first = std::move(finish_), last = std::move(finish)](at::Tensor tensor) {
      return last(first(std::move(tensor)));
    };
  }
  finish_ = std::move(finish);
  return Pending(std::move(*this));
}

}  // namespace oslo
