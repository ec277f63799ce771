# The list of tests for ctest, read as it stands: every test program that Make built, then every test/test_*.sh.
# $BUILD is the build directory (Makefile). A test that exits with 77 is reported as skipped.
get_filename_component(here ${CMAKE_CURRENT_LIST_FILE} DIRECTORY)
file(GLOB sources ${here}/test_*.c ${here}/test_*.sh)
foreach(source ${sources})
  get_filename_component(name ${source} NAME_WE)
  get_filename_component(kind ${source} EXT)
  if(kind STREQUAL ".c")
    add_test(${name} $ENV{BUILD}/test/${name})
  else()
    add_test(${name} ${source})
  endif()
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 WORKING_DIRECTORY ${here}/..)
endforeach()
