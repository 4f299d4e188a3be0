#!/bin/sh
# Makes a bundle that runs wherever glibc is as new as this system's: programs, modules and the libraries that they need.
#   scripts/bundle.sh BUILD DIR [STAGE]
# BUILD: build directory, made when missing. DIR: where the bundle is written, new or empty.
# STAGE: keep what `meson install` gives here (below STAGE/usr), for the Debian package.
# CROSS=aarch64-linux-gnu: for that machine (scripts/setup.sh dist arm64 installs what it takes).
set -eu

build=$1 dir=$2
top=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=${3:-$work/stage}
# shellcheck source=scripts/libraries.sh
. "$top/scripts/libraries.sh"

[ -f "$build/build.ninja" ] ||
    meson setup "$build" "$top" -Dbundle=true -Dtests=false -Dpkgconfig.relocatable=true --prefix=/usr --libdir=lib \
        ${CROSS:+--cross-file "$top/packaging/$CROSS.ini"}
DESTDIR=$(mkdir -p "$stage" && cd "$stage" && pwd) meson install -C "$build" --strip >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    exit 1
}

mkdir -p "$dir"
if [ -n "$(ls -A "$dir")" ]; then
    echo "bundle: $dir is not empty" >&2
    exit 1
fi
cp -a "$stage/usr/." "$dir/"
lib=$dir/lib/abx-server

# Each library that a program needs is brought along, and then what that one needs, until nothing new comes.
# What is glibc's own stays the system's; so do the parts that must fit it.
system='^(ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libutil|libnss_.*|libanl)\.so'
while
    needed "$dir/bin/abx-server" "$lib"/* | grep -vE "$system" >"$work/needed" || true
    new=0
    while read -r name; do
        [ ! -e "$lib/$name" ] || continue
        path=$(library "$name")
        if [ -z "$path" ]; then
            echo "bundle: $name is not to be found" >&2
            exit 1
        fi
        install -m 644 "$path" "$lib/$name"
        new=1
        # The licence goes along.
        from=$(package "$path" | cut -d: -f1)
        [ -n "$from" ] && [ -f "/usr/share/doc/$from/copyright" ] &&
            install -D -m 644 "/usr/share/doc/$from/copyright" "$dir/share/doc/abx-server/licenses/$from"
    done <"$work/needed"
    [ $new = 1 ]
do :; done
echo "bundle: $dir, $(du -sm "$dir" | cut -f1) MB"
