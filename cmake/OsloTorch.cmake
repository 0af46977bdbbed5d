# Finds LibTorch and defines the imported target `oslo_torch`; sets OSLO_TORCH_ROOT to its folder, or
# OSLO_TORCH_ERROR to what is wrong.
#
# Searched in this order: -DTorch_DIR=<torch>/share/cmake/Torch, the environment variable LIBTORCH
# (a LibTorch folder, or the torch folder of a wheel), the .venv of the project being configured, the
# .venv of oslo_cpp's own source tree, and, in an installed package, what it was built with.
#
# find_package(Torch) is not called: the config file in the PyPI wheel insists on nvcc, while all that is
# linked here is libtorch_cpu and libc10. What CUDA tensors need beside them is in OsloTorchCuda.cmake.
#
# LibTorch uses the C++11 ABI of libstdc++ since 2.6, which is the compiler's default: no flag.

# The minor versions that the tests have run with. docs/libtorch.md says what was seen of others, and
# what one has to be looked at for before it comes in here.
set(OSLO_TORCH_OLDEST "2.11")
set(OSLO_TORCH_NEWEST "2.11")
# A library that is built already goes with the minor version that it was built with.
if(OSLO_TORCH_BUILT_MINOR)
  set(OSLO_TORCH_OLDEST "${OSLO_TORCH_BUILT_MINOR}")
  set(OSLO_TORCH_NEWEST "${OSLO_TORCH_BUILT_MINOR}")
endif()
set(OSLO_TORCH_ERROR "")

# Sets OSLO_TORCH_ROOT and OSLO_TORCH_SOURCE (which of the places it came from).
macro(_oslo_find_torch)
  set(OSLO_TORCH_ROOT "")
  if(Torch_DIR)
    set(OSLO_TORCH_SOURCE "Torch_DIR")
    get_filename_component(_oslo_candidates "${Torch_DIR}/../../.." ABSOLUTE)
  elseif(NOT "$ENV{LIBTORCH}" STREQUAL "")
    set(OSLO_TORCH_SOURCE "the environment variable LIBTORCH")
    get_filename_component(_oslo_candidates "$ENV{LIBTORCH}" ABSOLUTE)
  else()
    set(_oslo_wheel ".venv/lib/python3*/site-packages/torch")
    get_filename_component(_oslo_own_tree "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
    set(OSLO_TORCH_SOURCE ".venv")
    file(GLOB _oslo_candidates "${CMAKE_SOURCE_DIR}/${_oslo_wheel}")
    if(NOT _oslo_candidates)
      file(GLOB _oslo_candidates "${_oslo_own_tree}/${_oslo_wheel}")
    endif()
    if(NOT _oslo_candidates AND OSLO_TORCH_BUILT_WITH)
      set(OSLO_TORCH_SOURCE "what oslo_cpp was built with")
      set(_oslo_candidates "${OSLO_TORCH_BUILT_WITH}")
    endif()
  endif()
  foreach(_oslo_candidate IN LISTS _oslo_candidates)
    if(NOT OSLO_TORCH_ROOT AND EXISTS "${_oslo_candidate}/include/ATen/ATen.h"
       AND EXISTS "${_oslo_candidate}/lib/libtorch_cpu.so")
      set(OSLO_TORCH_ROOT "${_oslo_candidate}")
    endif()
  endforeach()
  if(NOT OSLO_TORCH_ROOT)
    if(_oslo_candidates)
      set(OSLO_TORCH_ERROR "no LibTorch in ${_oslo_candidates} (from ${OSLO_TORCH_SOURCE}): \
include/ATen/ATen.h and lib/libtorch_cpu.so are expected there")
    else()
      set(OSLO_TORCH_ERROR "LibTorch not found: give -DTorch_DIR=<torch>/share/cmake/Torch, set the \
environment variable LIBTORCH to its folder, or run ./dev setup, which installs it into .venv")
    endif()
  endif()
endmacro()

# Sets `out` to the version of the LibTorch in `root`, as in 2.11.0.
function(_oslo_torch_version root out)
  set(version "unknown")
  foreach(header IN ITEMS torch/headeronly/version.h torch/version.h
                          torch/csrc/api/include/torch/version.h)
    if(EXISTS "${root}/include/${header}")
      file(STRINGS "${root}/include/${header}" lines
           REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]")
      if(lines)
        string(REGEX MATCHALL "[0-9]+" version "${lines}")
        list(JOIN version "." version)
        break()
      endif()
    endif()
  endforeach()
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

# Sets `out` to the CUDA libraries that libtorch_cpu itself needs. The wheel from PyPI is built for
# CUDA and needs its runtime and profiler even where there is no GPU; a CPU build needs neither.
# `missing` names the first one that is nowhere.
function(_oslo_torch_needs root out missing)
  set(paths "")
  execute_process(COMMAND "${CMAKE_READELF}" -d "${root}/lib/libtorch_cpu.so"
                  OUTPUT_VARIABLE dynamic ERROR_QUIET)
  string(REGEX MATCHALL "lib(cudart|cupti)\\.so\\.[0-9]+" names "${dynamic}")
  foreach(name IN LISTS names)
    file(GLOB path LIST_DIRECTORIES FALSE
         "${root}/lib/${name}" "${root}/../nvidia/*/lib/${name}")
    if(path)
      list(GET path 0 path)
      get_filename_component(path "${path}" ABSOLUTE)
    else()
      unset(path)
      find_library(path NAMES "${name}" NO_CACHE
                   HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
                   PATH_SUFFIXES lib64 lib extras/CUPTI/lib64)
    endif()
    if(NOT path)
      set(${missing} "${name}" PARENT_SCOPE)
      return()
    endif()
    list(APPEND paths "${path}")
  endforeach()
  set(${out} "${paths}" PARENT_SCOPE)
  set(${missing} "" PARENT_SCOPE)
endfunction()

# Defines oslo_torch.
macro(_oslo_torch_cpu)
  _oslo_torch_needs("${OSLO_TORCH_ROOT}" _oslo_needs _oslo_missing)
  if(_oslo_missing)
    set(OSLO_TORCH_ERROR "${OSLO_TORCH_ROOT}/lib/libtorch_cpu.so needs ${_oslo_missing}, which is \
not there: install the PyPI packages nvidia-cuda-runtime and nvidia-cuda-cupti (13.0) beside torch, \
or a CUDA 13 toolkit")
  else()
    add_library(oslo_torch INTERFACE IMPORTED GLOBAL)
    target_include_directories(oslo_torch SYSTEM INTERFACE
        "${OSLO_TORCH_ROOT}/include" "${OSLO_TORCH_ROOT}/include/torch/csrc/api/include")
    target_compile_definitions(oslo_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
    target_link_libraries(oslo_torch INTERFACE
        "${OSLO_TORCH_ROOT}/lib/libtorch_cpu.so" "${OSLO_TORCH_ROOT}/lib/libc10.so" ${_oslo_needs})
  endif()
endmacro()

if(NOT TARGET oslo_torch)
  _oslo_find_torch()
  if(OSLO_TORCH_ROOT)
    _oslo_torch_version("${OSLO_TORCH_ROOT}" _oslo_version)
    string(REGEX MATCH "^[0-9]+\\.[0-9]+" OSLO_TORCH_MINOR "${_oslo_version}")
    if(NOT OSLO_TORCH_MINOR OR OSLO_TORCH_MINOR VERSION_LESS OSLO_TORCH_OLDEST
       OR OSLO_TORCH_MINOR VERSION_GREATER OSLO_TORCH_NEWEST)
      set(_oslo_range "${OSLO_TORCH_OLDEST}")
      if(NOT OSLO_TORCH_OLDEST STREQUAL OSLO_TORCH_NEWEST)
        string(APPEND _oslo_range " to ${OSLO_TORCH_NEWEST}")
      endif()
      set(OSLO_TORCH_ERROR "LibTorch ${_oslo_range} is needed, but ${OSLO_TORCH_ROOT} (from \
${OSLO_TORCH_SOURCE}) is ${_oslo_version}")
    else()
      _oslo_torch_cpu()
    endif()
  endif()
  if(TARGET oslo_torch)
    # Operators register themselves when libtorch_cpu and libtorch_cuda are loaded, so these stay
    # linked even where no symbol of theirs is named.
    target_link_options(oslo_torch INTERFACE LINKER:--no-as-needed)
    message(STATUS "LibTorch ${_oslo_version}: ${OSLO_TORCH_ROOT} (from ${OSLO_TORCH_SOURCE})")
  endif()
endif()
