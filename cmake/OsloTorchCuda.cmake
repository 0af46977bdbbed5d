# Defines the imported target `oslo_torch_cuda`, what a LibTorch has for CUDA tensors beside
# `oslo_torch`, or sets OSLO_TORCH_CUDA_ERROR to what is wrong. Needs OSLO_TORCH_ROOT (OsloTorch.cmake).
#
# libtorch_cuda needs CUDA's libraries: cuBLAS, cuDNN, NCCL and others. They and their headers are
# looked for inside the LibTorch, beside the wheel, in OSLO_NVIDIA (the folder `nvidia` that NVIDIA's PyPI
# packages fill), in the .venv-cuda and .venv-peers of oslo_cpp's own source tree, and in a toolkit.
# Neither nvcc nor a driver nor a GPU is needed: no file of ours holds code for the device.
#
# With OSLO_CUDA=COMPILE the headers are enough: for looking whether it compiles.

set(OSLO_TORCH_CUDA_ERROR "")
set(OSLO_NVIDIA "" CACHE PATH "The folder that NVIDIA's PyPI packages fill: <site-packages>/nvidia")

# Sets `out` to the folders in which NVIDIA's packages may lie.
function(_oslo_nvidia_folders out)
  set(wheels "lib/python3*/site-packages/nvidia")
  get_filename_component(own_tree "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/.." ABSOLUTE)
  file(GLOB beside "${OSLO_TORCH_ROOT}/../nvidia")
  file(GLOB own "${own_tree}/.venv-cuda/${wheels}")
  file(GLOB peers "${own_tree}/.venv-peers/${wheels}")
  # What a CPU build links, beside the wheel, comes first: of two libraries of one name a program's search
  # path can lead to one only.
  set(${out} ${beside} ${OSLO_NVIDIA} ${OSLO_NVIDIA_BUILT_WITH} ${own} ${peers} PARENT_SCOPE)
endfunction()

# Sets `out` to the libraries of CUDA that libtorch_cuda needs, `missing` to what was not found.
function(_oslo_torch_cuda_needs out missing)
  _oslo_nvidia_folders(folders)
  set(paths "")
  set(lacking "")
  execute_process(COMMAND "${CMAKE_READELF}" -d "${OSLO_TORCH_ROOT}/lib/libtorch_cuda.so"
                  OUTPUT_VARIABLE dynamic ERROR_QUIET)
  string(REGEX MATCHALL "lib(cu|nccl|nv)[A-Za-z_]*[-0-9a-f]*\\.so\\.[0-9]+" names "${dynamic}")
  # libtorch_nvshmem needs it, which libtorch_cuda needs.
  foreach(name IN ITEMS ${names} libnvshmem_host.so.3)
    file(GLOB found "${OSLO_TORCH_ROOT}/lib/${name}")
    foreach(folder IN LISTS folders)
      file(GLOB more "${folder}/*/lib/${name}")
      list(APPEND found ${more})
    endforeach()
    unset(path)
    if(found)
      list(GET found 0 path)
      get_filename_component(path "${path}" ABSOLUTE)
    else()
      find_library(path NAMES "${name}" NO_CACHE HINTS ENV CUDA_HOME ENV CUDA_PATH
                   PATHS /usr/local/cuda PATH_SUFFIXES lib64 lib)
    endif()
    if(path)
      list(APPEND paths "${path}")
    else()
      list(APPEND lacking "${name}")
    endif()
  endforeach()
  set(${out} "${paths}" PARENT_SCOPE)
  set(${missing} "${lacking}" PARENT_SCOPE)
endfunction()

# Sets `out` to the folders of CUDA's and NCCL's headers, `missing` to a header not found.
function(_oslo_torch_cuda_headers out missing)
  _oslo_nvidia_folders(folders)
  set(includes "")
  foreach(header IN ITEMS cuda_runtime_api.h cublas_v2.h cusparse.h cusolverDn.h nccl.h)
    unset(path)
    foreach(folder IN LISTS folders)
      file(GLOB found "${folder}/*/include/${header}")
      if(found AND NOT path)
        list(GET found 0 path)
        get_filename_component(path "${path}" DIRECTORY)
      endif()
    endforeach()
    if(NOT path)
      find_path(path NAMES "${header}" NO_CACHE HINTS ENV CUDA_HOME ENV CUDA_PATH
                PATHS /usr/local/cuda PATH_SUFFIXES include)
    endif()
    if(NOT path)
      set(${missing} "${header}" PARENT_SCOPE)
      return()
    endif()
    list(APPEND includes "${path}")
  endforeach()
  list(REMOVE_DUPLICATES includes)
  set(${out} "${includes}" PARENT_SCOPE)
  set(${missing} "" PARENT_SCOPE)
endfunction()

if(NOT TARGET oslo_torch_cuda)
  set(_oslo_how "install NVIDIA's PyPI packages that torch's wheel names and give their folder by \
-DOSLO_NVIDIA=<site-packages>/nvidia, as ./dev test cuda does, or take a LibTorch that holds them")
  if(NOT EXISTS "${OSLO_TORCH_ROOT}/lib/libtorch_cuda.so")
    set(OSLO_TORCH_CUDA_ERROR "OSLO_CUDA needs a LibTorch for CUDA, and ${OSLO_TORCH_ROOT} is one for \
CPUs: it has no lib/libtorch_cuda.so")
  else()
    _oslo_torch_cuda_needs(_oslo_cuda_needs _oslo_missing)
    if(_oslo_missing AND NOT OSLO_CUDA STREQUAL "COMPILE")
      list(JOIN _oslo_missing ", " _oslo_missing)
      set(OSLO_TORCH_CUDA_ERROR "${OSLO_TORCH_ROOT}/lib/libtorch_cuda.so needs ${_oslo_missing}, which \
is not there: ${_oslo_how}")
    else()
      _oslo_torch_cuda_headers(_oslo_cuda_headers _oslo_missing)
      if(_oslo_missing)
        set(OSLO_TORCH_CUDA_ERROR "the header ${_oslo_missing} is not there: ${_oslo_how}")
      endif()
    endif()
  endif()
  if(NOT OSLO_TORCH_CUDA_ERROR)
    add_library(oslo_torch_cuda INTERFACE IMPORTED GLOBAL)
    target_include_directories(oslo_torch_cuda SYSTEM INTERFACE ${_oslo_cuda_headers})
    target_compile_definitions(oslo_torch_cuda INTERFACE USE_C10D_NCCL)
    target_link_libraries(oslo_torch_cuda INTERFACE oslo_torch
        "${OSLO_TORCH_ROOT}/lib/libtorch_cuda.so" "${OSLO_TORCH_ROOT}/lib/libc10_cuda.so"
        ${_oslo_cuda_needs})
    _oslo_nvidia_folders(OSLO_NVIDIA_FOUND)  # for the installed package
    list(GET _oslo_cuda_headers 0 _oslo_cuda_header)
    message(STATUS "CUDA: ${_oslo_cuda_header}")
  endif()
endif()
