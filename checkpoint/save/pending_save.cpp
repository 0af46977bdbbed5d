#include "checkpoint/save/pending_save.h"

#include <atomic>
#include <exception>
#include <iostream>
#include <string>
#include <thread>
#include <utility>

#include "checkpoint/save/save_job.h"
#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "mpu/group/group.h"
#include "mpu/group/group_agreement.h"

namespace oslo {

struct PendingSave::State {
  std::unique_ptr<SaveJob> job;
  std::shared_ptr<Group> group;
  std::exception_ptr error;
  std::atomic<bool> done = false;
  std::thread thread;

  void run() {
    try {
      job->write([&](const std::string& what, const std::function<void()>& step) {
        try {
          agree_on_success(*group, step);
        } catch (const std::exception& error) {
          fail_as(kind_of(error), "save_async: ", what, ": ", message_of(error));
        }
      });
    } catch (...) {
      error = std::current_exception();
    }
    done = true;
  }
};

PendingSave::PendingSave(std::unique_ptr<SaveJob> job, std::shared_ptr<Group> group)
    : state_(std::make_unique<State>()) {
  state_->job = std::move(job);
  state_->group = std::move(group);
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

PendingSave::~PendingSave() {
  try {
    wait();
  } catch (const std::exception& error) {
    std::cerr << "oslo: " << message_of(error) << std::endl;
  }
}

void PendingSave::wait() {
  if (state_->thread.joinable()) state_->thread.join();
  state_->job.reset();
  if (std::exception_ptr error = std::exchange(state_->error, nullptr)) {
    std::rethrow_exception(error);
  }
}

bool PendingSave::done() const {
  return state_->done;
}

}  // namespace oslo
