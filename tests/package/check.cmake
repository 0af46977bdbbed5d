# Installs oslo_cpp to a temporary prefix, then builds and runs a user's project against it.
# Run by ctest with BUILD (the build tree), SOURCE (the repository), WORK, GENERATOR, COMPILER,
# LAUNCHER (ccache, or empty), FLAGS and TUTORIALS (source files with | between).

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    list(JOIN ARGV " " line)
    message(FATAL_ERROR "failed (${code}): ${line}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/prefix")
# Without LIBTORCH: the package must know the LibTorch that it was built with.
run("${CMAKE_COMMAND}" -E env --unset=LIBTORCH "${CMAKE_COMMAND}" -S "${SOURCE}/tests/package" -B "${WORK}/app" -G "${GENERATOR}"
    "-DCMAKE_PREFIX_PATH=${WORK}/prefix" "-DCMAKE_CXX_COMPILER=${COMPILER}"
    "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}" "-DCMAKE_CXX_FLAGS=${FLAGS}"
    "-DTUTORIALS=${TUTORIALS}" "-DMODELS=${SOURCE}/tests/trained_library/net.cpp")
run("${CMAKE_COMMAND}" --build "${WORK}/app" --parallel 1)
# Without LD_LIBRARY_PATH: the run paths must be enough.
run("${CMAKE_COMMAND}" -E env --unset=LD_LIBRARY_PATH "${WORK}/app/app" "${WORK}/alone")
if(EXISTS "${WORK}/prefix/bin/oslo")
  run("${CMAKE_COMMAND}" -E env --unset=LD_LIBRARY_PATH
      "${WORK}/prefix/bin/oslo" run -n 4 -- "${WORK}/app/app" "${WORK}/four")
  string(FIND "${FLAGS}" "-fsanitize" sanitized)
  math(EXPR sanitized "${sanitized} + 1")
  run("${CMAKE_COMMAND}" -D "PREFIX=${WORK}/prefix" -D "SOURCE=${SOURCE}"
      -D "FOLDER=${WORK}/four/parallel_ckpt" -D "PROGRAM=${WORK}/app/app"
      -D "MODELS=${WORK}/app/libnet.so" -D "SANITIZED=${sanitized}"
      -P "${SOURCE}/tests/package/commands.cmake")
  if(EXISTS "${WORK}/app/own_operator")
    run("${CMAKE_COMMAND}" -E env --unset=LD_LIBRARY_PATH
        "${WORK}/prefix/bin/oslo" run -n 3 -- "${WORK}/app/own_operator")
  endif()
endif()
