# Headers keep their tree under include/oslo_cpp_sdk, so that one include folder serves both
# <oslo_cpp/oslo.h> and the "mpu/..." includes inside it, and nothing clashes in a shared prefix.
include(CMakePackageConfigHelpers)

set(sdk "${CMAKE_INSTALL_INCLUDEDIR}/oslo_cpp_sdk")
foreach(folder IN ITEMS oslo_cpp checkpoint parallelizers mpu)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/${folder}" DESTINATION "${sdk}"
          FILES_MATCHING PATTERN "*.h")
endforeach()

# Beside our own folder, LibTorch's: installed programs run without LD_LIBRARY_PATH.
set_target_properties(oslo_cpp PROPERTIES
    INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH TRUE)

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
