#pragma once

#include <cublasLt.h>

#include <string>

namespace oslo::cublaslt {

/// What a user can do about a failed call.
const char* advice(cublasStatus_t status);

/// Throws `oslo::Error` with the call, what it was to compute, cuBLASLt's own words and advice.
[[noreturn]] void fail_with(cublasStatus_t status, const char* call, const std::string& what);

}  // namespace oslo::cublaslt
