# oslo_compile_by_folder(<target> <file>...): the files of a folder are compiled together. Whatever
# reads the precompiled header instantiates its templates again, which takes longer than most files.
#
# A large folder is split into groups of about 60 kB of source, some 20 seconds and 1.5 GB to compile.
# Which group a file belongs to follows from its name: a new file changes one group, not all
# behind it. So any two files of a folder may meet, and must not define the same name in their
# anonymous namespaces.
function(oslo_compile_by_folder target)
  set(bytes_a_group 60000)
  foreach(file IN LISTS ARGN)
    cmake_path(GET file PARENT_PATH folder)
    list(APPEND folders "${folder}")
    list(APPEND "files of ${folder}" "${file}")
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder IN LISTS folders)
    set(bytes 0)
    foreach(file IN LISTS "files of ${folder}")
      file(SIZE "${file}" size)
      math(EXPR bytes "${bytes} + ${size}")
    endforeach()
    math(EXPR groups "(${bytes} + ${bytes_a_group} - 1) / ${bytes_a_group}")
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY "${PROJECT_SOURCE_DIR}" OUTPUT_VARIABLE name)
    string(REPLACE "/" "_" name "${name}")
    foreach(file IN LISTS "files of ${folder}")
      cmake_path(GET file STEM stem)
      string(MD5 digest "${stem}")
      string(SUBSTRING "${digest}" 0 6 digits)
      math(EXPR group "0x${digits} % ${groups}")
      set_source_files_properties("${file}" PROPERTIES UNITY_GROUP "${name}_${group}")
    endforeach()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
