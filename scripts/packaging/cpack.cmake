# Debian packages, one for each component of the installation: "cpack" in the build folder, or scripts/package,
# which also checks them. The programs are linked for /usr: configure with -DCMAKE_INSTALL_PREFIX=/usr
# -DKVF_DEBIAN=ON, which adds what Debian wants in /usr/share/doc.
option(KVF_DEBIAN "Install changelog and copyright where Debian's packages have them" OFF)
set(kvf_debian ${CMAKE_CURRENT_LIST_DIR}/debian)
set(kvf_revision ${PROJECT_VERSION}-1)

# component, package, section, recommends and so on stand in one place
set(CPACK_COMPONENTS_ALL runtime dev daemon)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libkvfence0)
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libkvfence-dev)
set(CPACK_DEBIAN_DAEMON_PACKAGE_NAME kvfence)
set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME kvfence-tools)
set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-kvfence)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DAEMON_PACKAGE_SECTION net)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libkvfence0 (= ${kvf_revision})")
set(CPACK_DEBIAN_DAEMON_PACKAGE_RECOMMENDS "systemd")
set(CPACK_DEBIAN_DAEMON_PACKAGE_SUGGESTS "ibverbs-providers, kvfence-tools")
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "kvfence (= ${kvf_revision}), libkvfence0 (= ${kvf_revision})")
set(CPACK_DEBIAN_TOOLS_PACKAGE_SUGGESTS "iperf3, perftest")
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3, libkvfence0 (= ${kvf_revision})")
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
if(TARGET kvfence-bench)
  list(APPEND CPACK_COMPONENTS_ALL tools)
endif()
if(EXISTS ${CMAKE_SOURCE_DIR}/client/python/CMakeLists.txt)
  list(APPEND CPACK_COMPONENTS_ALL python)
endif()

set(about
"kvfence moves the KV pages of LLM requests between prefill and decode workers,
and shows for each request when nothing can touch its pages any more. No timer
ever frees a page.")
set(CPACK_DEBIAN_RUNTIME_DESCRIPTION "KV pages that are idle only by proof, library of engines
${about}
.
This package has the library that engines are linked with.")
set(CPACK_DEBIAN_DEV_DESCRIPTION "KV pages that are idle only by proof, for building engines
${about}
.
This package has the header, the static library, the files for pkg-config and
CMake, and a manual page for each function.")
set(CPACK_DEBIAN_DAEMON_DESCRIPTION "KV pages that are idle only by proof, the daemon
${about}
.
This package has kvfenced, which runs beside each GPU worker, and the tools that
show and operate it.")
set(CPACK_DEBIAN_TOOLS_DESCRIPTION "KV pages that are idle only by proof, proof and benchmark
${about}
.
This package has kvfence-torture, which aborts requests in flight and looks at
every byte afterwards, and kvfence-bench.")
set(CPACK_DEBIAN_PYTHON_DESCRIPTION "KV pages that are idle only by proof, for Python engines
${about}
.
This package has the Python module, which needs nothing but the library.")

set(CPACK_GENERATOR DEB)
set(CPACK_SET_DESTDIR ON) # the configuration goes to /etc, which is not below the prefix
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_NAME kvfence)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_VENDOR kvfence)
set(CPACK_PACKAGE_CONTACT "kvfence maintainers <maintainers@kvfence.org>")
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SOURCE kvfence)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
set(CPACK_DEBIAN_PYTHON_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY "=")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${kvf_debian}/runtime/triggers)
set(CPACK_DEBIAN_DAEMON_PACKAGE_CONTROL_EXTRA ${kvf_debian}/daemon/postinst ${kvf_debian}/daemon/prerm
    ${kvf_debian}/daemon/postrm ${kvf_debian}/daemon/conffiles)

if(KVF_DEBIAN)
  execute_process(COMMAND gzip -9nc ${kvf_debian}/changelog
                  OUTPUT_FILE ${CMAKE_CURRENT_BINARY_DIR}/changelog.Debian.gz COMMAND_ERROR_IS_FATAL ANY)
  foreach(component IN LISTS CPACK_COMPONENTS_ALL)
    string(TOUPPER ${component} upper)
    set(doc_dir ${CMAKE_INSTALL_DATADIR}/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
    install(FILES ${kvf_debian}/copyright ${CMAKE_CURRENT_BINARY_DIR}/changelog.Debian.gz
            DESTINATION ${doc_dir} COMPONENT ${component})
  endforeach()
endif()
include(CPack)
