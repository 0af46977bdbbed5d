# Programs built from this tree: tests, tutorials, benchmarks, tools.

# Tests, tutorials and tools are not optimized: what they wait for is LibTorch and our library, and half
# of what continuous integration does is to compile them. Line numbers in stack traces come with a
# sanitizer or the preset debug. -fPIC for executables too, so that libraries of models share the
# precompiled header. The last -O and the last -g count.
set(oslo_program_options -fPIC)
if(NOT OSLO_SANITIZE)
  list(APPEND oslo_program_options $<$<CONFIG:RelWithDebInfo>:-O0> $<$<CONFIG:RelWithDebInfo>:-g0>)
endif()
# Benchmarks are measured.
set(oslo_benchmark_options -fPIC)

# torch/torch.h costs half a minute a file, so our programs share one precompiled copy for each set of
# options.
function(oslo_precompiled target)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/${target}.cpp" CONTENT "")
  add_library(${target} STATIC EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/${target}.cpp")
  target_link_libraries(${target} PRIVATE oslo_torch)
  oslo_settings(${target})
  target_compile_options(${target} PRIVATE ${ARGN})
  target_precompile_headers(${target} PRIVATE <torch/torch.h>)
endfunction()
if(OSLO_PCH AND NOT TARGET oslo_program_pch)
  oslo_precompiled(oslo_program_pch ${oslo_program_options})
  oslo_precompiled(oslo_benchmark_pch ${oslo_benchmark_options})
endif()

# oslo_program(<target> program|benchmark): our settings and the shared precompiled header.
function(oslo_program target kind)
  oslo_settings(${target})
  target_compile_options(${target} PRIVATE ${oslo_${kind}_options})
  if(OSLO_PCH)
    target_precompile_headers(${target} REUSE_FROM oslo_${kind}_pch)
  endif()
endfunction()

# oslo_link_library(<target> [BENCHMARK] [libraries...]): <target> uses oslo_cpp, and is a program or, with
# BENCHMARK, a benchmark of ours.
function(oslo_link_library target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "BENCHMARK" "" "")
  target_link_libraries(${target} PRIVATE oslo_cpp::oslo_cpp ${arg_UNPARSED_ARGUMENTS})
  if(TARGET oslo_cpp::oslo_cpp_cuda)
    target_link_libraries(${target} PRIVATE oslo_cpp::oslo_cpp_cuda)
  endif()
  if(arg_BENCHMARK)
    oslo_program(${target} benchmark)
  else()
    oslo_program(${target} program)
  endif()
endfunction()

# oslo_test(<name> [SOURCES <file>...] [RANKS_AS_PROCESSES]): one test program and one ctest entry.
# SOURCES is <name>.cpp unless given. RANKS_AS_PROCESSES marks a test that starts a process for each
# rank: it gets the processors for itself, so that its time limits mean something.
function(oslo_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "RANKS_AS_PROCESSES" "" "SOURCES")
  if(NOT arg_SOURCES)
    set(arg_SOURCES "${name}.cpp")
  endif()
  add_executable(${name} ${arg_SOURCES})
  oslo_link_library(${name} GTest::gtest GTest::gmock GTest::gtest_main)
  foreach(helper IN ITEMS oslo_test_support gpt2_tutorial)
    if(TARGET ${helper})
      target_link_libraries(${name} PRIVATE ${helper})
    endif()
  endforeach()
  target_compile_definitions(${name} PRIVATE
      OSLO_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
      OSLO_TUTORIAL_DATA="${PROJECT_SOURCE_DIR}/tutorials/data")
  if(TARGET oslo)
    target_compile_definitions(${name} PRIVATE OSLO_TOOL="$<TARGET_FILE:oslo>")
    add_dependencies(${name} oslo)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  # One thread a rank: ranks share this machine's cores, and sums come out the same every time.
  # No test measures the machine: plans are those of the rates that this repository holds.
  set(environment "OMP_NUM_THREADS=1" "OSLO_RATES=${PROJECT_SOURCE_DIR}/tests/data/rates.json")
  # A sanitizer's dlopen does not look where the caller's RUNPATH says.
  if(OSLO_SANITIZE)
    list(APPEND environment "LD_LIBRARY_PATH=$<TARGET_FILE_DIR:oslo_cpp>")
  endif()
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "${environment}")
  if(arg_RANKS_AS_PROCESSES)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()
