# Copies of the tree for programs that change or build it their own way; sourced by bash. Not a program.
# shellcheck shell=bash

# list_tree FOLDER: tracked files and new ones that are not ignored; without git, all that is no build.
list_tree() {
    (
        cd "$1" || exit 1
        if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
            git ls-files --cached --others --exclude-standard
        else
            find . -type d \( -name .git -o -name 'build*' \) -prune -o -type f -print | sed 's#^\./##'
        fi
    ) | sort -u
}

# copy_tree FROM TO: makes TO the same files as FROM. What is the same already keeps its time, so that
# nothing is compiled again for no reason.
copy_tree() {
    local from=$1 to=$2
    mkdir -p "$to"
    list_tree "$from" | (cd "$from" && while IFS= read -r path; do [ ! -f "$path" ] || printf '%s\n' "$path"; done) \
        >"$to.list"
    (cd "$from" && xargs -r -d '\n' cksum <"$to.list") | sort >"$to.from"
    (cd "$to" && xargs -r -d '\n' cksum <"$to.list" 2>/dev/null) | sort >"$to.to"
    comm -23 "$to.from" "$to.to" | sed 's/^[0-9]* [0-9]* //' | (cd "$from" && xargs -r -d '\n' cp --parents -f -t "$to")
    (cd "$to" && find . -type f | sed 's#^\./##') | sort | comm -23 - "$to.list" | (cd "$to" && xargs -r -d '\n' rm -f)
    rm -f "$to.from" "$to.to"
}
