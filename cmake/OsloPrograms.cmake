# Programs built from this tree: tests, tutorials, benchmarks, tools.

# Tests, tutorials and tools are not optimized: what they wait for is LibTorch and our library, and half
# of what continuous integration does is to compile them. Line numbers in stack traces come with a
# sanitizer or the preset debug. The last -O and the last -g count. -fPIC for executables too, so that
# libraries of models share the precompiled header. Inline functions are hidden: LibTorch would take an
# executable's unoptimized ones for its own.
set(oslo_program_options -fPIC -fvisibility-inlines-hidden)
if(NOT OSLO_SANITIZE)
  list(APPEND oslo_program_options $<$<CONFIG:RelWithDebInfo>:-O0> $<$<CONFIG:RelWithDebInfo>:-g0>)
endif()
# Benchmarks are measured.
set(oslo_benchmark_options -fPIC)

# oslo_precompiled(<kind> <header>...): torch/torch.h costs half a minute a file, so our programs of a
# kind share one precompiled copy of it, and of what else each of them includes.
function(oslo_precompiled kind)
  set(target oslo_${kind}_pch)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/${target}.cpp" CONTENT "")
  add_library(${target} STATIC EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/${target}.cpp")
  target_link_libraries(${target} PRIVATE oslo_torch nlohmann_json::nlohmann_json)
  oslo_settings(${target})
  target_compile_options(${target} PRIVATE ${oslo_${kind}_options})
  target_precompile_headers(${target} PRIVATE <torch/torch.h> ${ARGN})
endfunction()
if(OSLO_PCH AND NOT TARGET oslo_program_pch)
  oslo_precompiled(program)
  oslo_precompiled(benchmark)
endif()

# oslo_link_library(<target> [KIND program|test|benchmark] [libraries...]): <target> uses oslo_cpp, our
# settings and the precompiled header of its kind, which is program unless given.
function(oslo_link_library target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "KIND" "")
  if(NOT arg_KIND)
    set(arg_KIND program)
  endif()
  target_link_libraries(${target} PRIVATE oslo_cpp::oslo_cpp ${arg_UNPARSED_ARGUMENTS})
  if(TARGET oslo_cpp::oslo_cpp_cuda)
    target_link_libraries(${target} PRIVATE oslo_cpp::oslo_cpp_cuda)
  endif()
  oslo_settings(${target})
  target_compile_options(${target} PRIVATE ${oslo_${arg_KIND}_options})
  if(OSLO_PCH)
    target_precompile_headers(${target} REUSE_FROM oslo_${arg_KIND}_pch)
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
  oslo_link_library(${name} KIND test GTest::gtest GTest::gmock GTest::gtest_main)
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
