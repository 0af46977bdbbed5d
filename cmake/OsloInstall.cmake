# Headers keep their tree under include/oslo_cpp_sdk, so that one include folder serves both
# <oslo_cpp/oslo.h> and the "mpu/..." includes inside it, and nothing clashes in a shared prefix.
include(CMakePackageConfigHelpers)

set(sdk "${CMAKE_INSTALL_INCLUDEDIR}/oslo_cpp_sdk")
foreach(folder IN ITEMS oslo_cpp checkpoint parallelizers mpu)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/${folder}" DESTINATION "${sdk}"
          FILES_MATCHING PATTERN "*.h")
endforeach()

# oslo_installed_run_path(<library> <what it links>): beside its own folder those of LibTorch and of
# CUDA's libraries, so that installed programs run without LD_LIBRARY_PATH. They are named here since
# INSTALL_RPATH_USE_LINK_PATH leaves out folders inside the project, where .venv lies.
function(oslo_installed_run_path library linked)
  set(folders "$ORIGIN")
  get_target_property(files ${linked} INTERFACE_LINK_LIBRARIES)
  foreach(file IN LISTS files)
    if(IS_ABSOLUTE "${file}")
      get_filename_component(folder "${file}" DIRECTORY)
      list(APPEND folders "${folder}")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  set_target_properties(${library} PROPERTIES INSTALL_RPATH "${folders}")
endfunction()
oslo_installed_run_path(oslo_cpp oslo_torch)
if(TARGET oslo_cpp_cuda)
  oslo_installed_run_path(oslo_cpp_cuda oslo_torch_cuda)
endif()

set(package "${CMAKE_INSTALL_LIBDIR}/cmake/oslo_cpp")
set(libraries oslo_cpp)
if(TARGET oslo_cpp_cuda)
  list(APPEND libraries oslo_cpp_cuda)
endif()
install(TARGETS ${libraries} EXPORT oslo_cpp LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT oslo_cpp NAMESPACE oslo_cpp:: FILE oslo_cppTargets.cmake DESTINATION "${package}")
configure_package_config_file(
    "${PROJECT_SOURCE_DIR}/cmake/oslo_cppConfig.cmake.in"
    "${PROJECT_BINARY_DIR}/oslo_cppConfig.cmake" INSTALL_DESTINATION "${package}")
write_basic_package_version_file(
    "${PROJECT_BINARY_DIR}/oslo_cppConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/oslo_cppConfig.cmake"
              "${PROJECT_BINARY_DIR}/oslo_cppConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/OsloTorch.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/OsloTorchCuda.cmake" DESTINATION "${package}")

# The build folder is a package too: cmake/cuda/ is built on it.
export(EXPORT oslo_cpp NAMESPACE oslo_cpp:: FILE "${PROJECT_BINARY_DIR}/oslo_cppTargets.cmake")
foreach(file IN ITEMS OsloTorch OsloTorchCuda)
  configure_file("${PROJECT_SOURCE_DIR}/cmake/${file}.cmake"
                 "${PROJECT_BINARY_DIR}/${file}.cmake" COPYONLY)
endforeach()
