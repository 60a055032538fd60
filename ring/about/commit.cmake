# Writes commit.h when it would change: cmake -DSOURCE=DIR -DOUT=FILE [-DCOMMIT=TEXT] -P commit.cmake
# A tree without git, or one that belongs to somebody else's repository, names no commit.
set(commit "${COMMIT}")
if(commit STREQUAL "" AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND git -C ${SOURCE} rev-parse --short=12 HEAD
                  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                  RESULT_VARIABLE failed)
  execute_process(COMMAND git -C ${SOURCE} diff --quiet HEAD -- RESULT_VARIABLE is_changed ERROR_QUIET)
  if(failed)
    set(commit "")
  elseif(is_changed)
    string(APPEND commit " and changes")
  endif()
endif()
set(text "#define KVF_COMMIT_TEXT \"${commit}\"\n")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUT} "${text}")
endif()
