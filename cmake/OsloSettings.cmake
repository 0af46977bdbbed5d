# How this repository's own code is compiled. None of it reaches users of the library.

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
  endif()
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  find_program(OSLO_CCACHE ccache)
  if(OSLO_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # The sloppiness is what ccache asks for before it caches precompiled headers.
    set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros "${OSLO_CCACHE}")
  endif()
  find_program(OSLO_MOLD mold)
endif()

# Standard, warnings, sanitizers and faster tools for one of our targets. Every target gets the same,
# because a precompiled header is only shared between equal flags.
function(oslo_settings target)
  set_target_properties(${target} PROPERTIES
      CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
  # -g1: function names and lines for stack traces; full debug information of LibTorch's headers
  # would be most of every object file.
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<CONFIG:RelWithDebInfo>:-g1>)
  if(OSLO_CCACHE AND OSLO_PCH AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fpch-preprocess)
  endif()
  if(OSLO_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${OSLO_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${OSLO_SANITIZE})
    # Instrumented, LibTorch's own headers look uninitialized to GCC.
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
    if(OSLO_SANITIZE MATCHES "undefined")
      # vptr needs the type information of LibTorch's classes, part of which LibTorch hides.
      target_compile_options(${target} PRIVATE -fno-sanitize=vptr)
    endif()
  endif()
  if(OSLO_MOLD)
    target_link_options(${target} PRIVATE -fuse-ld=mold)
  endif()
endfunction()
