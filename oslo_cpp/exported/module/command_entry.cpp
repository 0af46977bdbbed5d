#include "oslo_cpp/exported/module/command_entry.h"

#include <exception>
#include <iostream>

#include "mpu/base/text.h"
#include "oslo_cpp/exported/module/describe.h"
#include "oslo_cpp/exported/module/exported_module.h"
#include "oslo_cpp/initialize/model_library.h"

int oslo_plan_exported(const char* path, int word_count, const char* const* words) {
  return oslo::plan_library_model(
      [&] {
        const auto model = oslo::load_exported(path);
        oslo::InitializeOptions how;
        how.example_inputs = [model] { model->forward(model->example_inputs()); };
        return oslo::LibraryModel{model, how};
      },
      word_count, words);
}

int oslo_inspect_exported(const char* path) {
  try {
    std::cout << oslo::describe_exported(path);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "oslo inspect: " << oslo::message_of(error) << "\n";
    return 1;
  }
}
