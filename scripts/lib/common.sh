# Shared by the scripts of this folder; sourced by bash. Not a program.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
me=${0##*/}

say() {
    printf '%s: %s\n' "$me" "$*"
}

die() {
    printf '%s: %s\n' "$me" "$*" >&2
    exit 1
}

# show_help FIRST,LAST: those lines of the script's own head, wherever it was called from.
show_help() {
    sed -n "$1s/^# \{0,1\}//p" "$root/scripts/$me"
}

jobs_count() {
    nproc 2>/dev/null || echo 2
}

# choose_generator FOLDER: presets name no generator, so that make does where there is no ninja. A folder
# that was configured before keeps its own.
choose_generator() {
    local cache=$1/CMakeCache.txt
    if [ -f "$cache" ]; then
        CMAKE_GENERATOR=$(sed -n 's/^CMAKE_GENERATOR:INTERNAL=//p' "$cache")
    elif command -v ninja >/dev/null; then
        CMAKE_GENERATOR=Ninja
    else
        CMAKE_GENERATOR="Unix Makefiles"
    fi
    export CMAKE_GENERATOR
}

preset_folder() {
    if [ "$1" = release ]; then
        printf '%s/build\n' "$root"
    else
        printf '%s/build-%s\n' "$root" "$1"
    fi
}

has_criterion() {
    printf '#include <criterion/criterion.h>\n' | "${CC:-cc}" -E - >/dev/null 2>&1
}

is_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# packages_missing LIST...: the first alternative of each line of these lists of which none is there.
packages_missing() {
    local list package alternative found wanted
    while read -r list package _; do
        for wanted in "$@"; do
            [ "$list" = "$wanted" ] || continue
            found=no
            for alternative in ${package//|/ }; do
                if is_installed "$alternative"; then
                    found=yes
                fi
            done
            if [ "$found" = no ]; then
                printf '%s\n' "${package%%|*}"
            fi
        done
    done < <(grep -v '^#' "$root/scripts/packages.txt")
}

# packages_install LIST...: as root or with sudo installs what is missing; else prints how, and exits 3.
packages_install() {
    local missing as_root=()
    if ! command -v dpkg-query >/dev/null; then
        say "this is no Debian: what is needed stands in scripts/packages.txt; going on without a check"
        return 0
    fi
    mapfile -t missing < <(packages_missing "$@")
    if [ "${#missing[@]}" -eq 0 ]; then
        return 0
    fi
    if [ "$(id -u)" -ne 0 ]; then
        # On a terminal sudo may ask for a password; elsewhere it must do without.
        if command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
            as_root=(sudo)
        else
            say "missing packages, and neither root nor sudo here. Please run:" >&2
            printf '    apt-get install --no-install-recommends %s\n' "${missing[*]}" >&2
            exit 3
        fi
    fi
    say "installing ${missing[*]}"
    if ! { "${as_root[@]}" apt-get update -q &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -q -y --no-install-recommends "${missing[@]}"; } >"$packages_log" 2>&1; then
        tail -n 20 "$packages_log" >&2
        say "the packages could not be installed. By hand:" >&2
        printf '    apt-get install --no-install-recommends %s\n' "${missing[*]}" >&2
        exit 3
    fi
}
packages_log=${TMPDIR:-/tmp}/kvfence-packages.$$.log
trap 'rm -f "$packages_log"' EXIT

# show_progress LOG: follows a build's log and says now and then how far it is; ended by the caller.
show_progress() {
    local part last=
    while sleep 1 && kill -0 "$$" 2>/dev/null; do # an interrupt ends the script and not this
        # ninja counts files ("[12/107]"), make counts in percent ("[ 11%]").
        part=$(grep -oE '^\[ *[0-9]+(/[0-9]+|%)\]' "$1" 2>/dev/null | tail -n 1 | tr -d '[] ')
        if [ "$part" = "$last" ]; then
            continue
        fi
        last=$part
        if [ -t 1 ]; then
            printf '\r%s: building, %s ' "$me" "$part"
        else
            say "building, $part"
            sleep 4 # a line each time: fewer of them
        fi
    done
}

# build_with_progress PRESET [CMAKE OPTION...]: build_preset for somebody who watches.
build_with_progress() {
    local status=0 follower
    rm -f "$root/build-logs/$1.log" # not the progress of an earlier one
    show_progress "$root/build-logs/$1.log" &
    follower=$!
    build_preset "$@" || status=$?
    kill "$follower" 2>/dev/null || true
    wait "$follower" 2>/dev/null || true
    if [ -t 1 ]; then
        printf '\r%40s\r' ''
    fi
    return "$status"
}

# build_preset PRESET [CMAKE OPTION...]: configures and builds, quietly unless it fails.
build_preset() {
    local preset=$1 log
    shift
    choose_generator "$(preset_folder "$preset")"
    log=$root/build-logs/$preset.log
    mkdir -p "$root/build-logs"
    if ! (cd "$root" && cmake --preset "$preset" "$@" && cmake --build --preset "$preset" --parallel "$(jobs_count)") \
        >"$log" 2>&1; then
        grep -E -m 40 -A 6 'error|Error|FAILED|undefined reference' "$log" >&2 || tail -n 40 "$log" >&2
        say "the build of preset $preset failed; all of it: ${log#"$root"/}" >&2
        return 1
    fi
}
