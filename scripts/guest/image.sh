# Kernel and initramfs of the guest, made once and kept; sourced by scripts/rdma-guest. Not a program.
# shellcheck shell=bash disable=SC2154 # root, cache, work and status_unavailable are its
#
# Kept in $cache: the kernel's package as Debian has it, and a folder "image-KEY" with vmlinuz and
# initramfs.gz. KEY covers all that they are made of, so that whatever changes is made anew.

# Fixed by hand where a host has its own idea of it.
kernel_metapackage=linux-image-amd64

# image_fail SENTENCE: nothing can be run without an image, and that is the one thing to say.
image_fail() {
    say "$*" >&2
    exit "$status_unavailable"
}

# Sets kernel_package and kernel_version: what Debian's metapackage means today, or, where apt knows nothing
# (no lists, no network), what it meant in an earlier run here. apt is slow: it is asked again only when its
# lists are newer than its last answer.
image_choose_kernel() {
    local answer=$cache/kernel
    if [ ! "$answer" -nt /var/lib/apt/lists ]; then
        kernel_package=$(apt-cache depends --important "$kernel_metapackage" 2>/dev/null |
            sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
        kernel_version=$([ -z "$kernel_package" ] || apt-cache show --no-all-versions "$kernel_package" 2>/dev/null |
            sed -n 's/^Version: //p' | head -n 1)
        if [ -n "$kernel_version" ]; then
            printf '%s %s\n' "$kernel_package" "$kernel_version" >"$answer.$$" && mv "$answer.$$" "$answer"
        fi
    fi
    [ -f "$answer" ] && read -r kernel_package kernel_version <"$answer"
}

# Sets image to the folder of kernel and initramfs, which exist when this returns.
image_prepare() {
    local key
    mkdir -p "$cache" || image_fail "cannot make $cache; --cache names another folder"
    if ! image_choose_kernel; then
        if [ "$(id -u)" -eq 0 ]; then
            say "asking Debian for its packages" >&2
            apt-get update -q >/dev/null 2>&1
        fi
        image_choose_kernel ||
            image_fail "apt knows no $kernel_metapackage and $cache has none: \"apt-get update\" may help"
    fi
    key=$({
        printf '%s %s\n' "$kernel_package" "$kernel_version"
        cat "$root/scripts/guest/boot" "$root/scripts/guest/modules.txt" "$root/scripts/guest/image.sh" \
            "$(command -v busybox)"
    } | sha256sum | cut -c 1-16)
    image=$cache/image-$key
    [ ! -f "$image/initramfs.gz" ] || { touch -c "$image" && return; }
    # Two that start at once make one image.
    exec {image_lock}>"$cache/lock"
    flock "$image_lock"
    if [ ! -f "$image/initramfs.gz" ]; then
        image_make
    fi
    exec {image_lock}>&-
}

image_fetch() {
    local name=${kernel_package}_${kernel_version//:/%3a}_amd64.deb
    deb=$cache/$name
    [ -f "$deb" ] && return
    say "fetching $kernel_package $kernel_version (about 70 MB)" >&2
    mkdir -p "$work/fetch"
    if ! (cd "$work/fetch" && apt-get download -q "$kernel_package=$kernel_version") >"$work/fetch.log" 2>&1; then
        tail -n 5 "$work/fetch.log" >&2
        image_fail "$kernel_package could not be fetched"
    fi
    mv "$work/fetch/"*.deb "$cache/.$name.$$" && mv "$cache/.$name.$$" "$deb"
}

# One pass over the package; the modules wanted and all they depend on, in an order in which they load.
image_make() {
    local release=${kernel_package#linux-image-} tree=$work/kernel files=$work/initramfs made=$work/image module path
    image_fetch
    say "making the image for $release, once" >&2
    mkdir -p "$tree" "$files/bin" "$files/modules" "$files/dev" "$files/proc" "$files/sys" "$files/host" "$made"
    dpkg-deb --fsys-tarfile "$deb" | tar -C "$tree" -xf - ./boot ./lib/modules ||
        image_fail "$deb cannot be unpacked; without it the next run fetches it again"
    depmod -b "$tree" "$release" || image_fail "depmod fails on the modules of $release"
    while read -r module; do
        modprobe -S "$release" -d "$tree" --show-depends "$module" ||
            image_fail "$release has no module $module"
    done < <(grep -v '^#' "$root/scripts/guest/modules.txt") >"$work/loads" || exit
    while read -r _ path; do
        cp "$path" "$files/modules/"
        printf '%s\n' "${path##*/}"
    done < <(grep '^insmod ' "$work/loads" | awk '!seen[$2]++ { print $1, $2 }') >"$files/modules/order"
    cp "$(command -v busybox)" "$files/bin/busybox"
    ln -s busybox "$files/bin/sh"
    cp "$root/scripts/guest/boot" "$files/init"
    chmod 755 "$files/init" "$files/bin/busybox"
    (cd "$files" && find . -print0 | cpio --null --create --format newc --owner 0:0 --quiet) |
        gzip -1 >"$made/initramfs.gz" || image_fail "the initramfs cannot be packed"
    cp "$tree/boot/vmlinuz-$release" "$made/vmlinuz" || image_fail "$kernel_package holds no vmlinuz"
    chmod 755 "$made"
    # Beside the others and then into place, as other file systems may lie between.
    cp -r "$made" "$cache/.image.$$" && mv -T "$cache/.image.$$" "$image"
    rm -rf "$tree"
    # What nobody used for a week was of an earlier kernel or an earlier form of these files.
    find "$cache" -maxdepth 1 -name 'image-*' ! -path "$image" -mtime +7 -exec rm -rf {} +
}
