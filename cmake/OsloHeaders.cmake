# oslo_compile_headers(<target> <library> <file>...): compiles by itself every header of the library
# that has no source file: one that has is compiled by itself as the first include of that file, where
# no precompiled header comes before it (OSLO_PCH=OFF; tools/check/includes.py sees to the order).
function(oslo_compile_headers target library)
  foreach(header IN LISTS ARGN)
    cmake_path(REPLACE_EXTENSION header cpp OUTPUT_VARIABLE source)
    if(EXISTS "${source}")
      continue()
    endif()
    cmake_path(RELATIVE_PATH header BASE_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE path)
    set(alone "${PROJECT_BINARY_DIR}/headers/${path}.cpp")
    # Twice, for the guard.
    file(CONFIGURE OUTPUT "${alone}" CONTENT "#include \"${path}\"\n#include \"${path}\"\n" @ONLY)
    list(APPEND sources "${alone}")
  endforeach()
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${sources})
  target_link_libraries(${target} PRIVATE ${library})
  oslo_settings(${target})
endfunction()
