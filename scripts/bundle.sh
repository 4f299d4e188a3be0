#!/bin/sh
# Makes a bundle that runs wherever glibc is as new as this system's: programs, modules and the libraries that they need.
#   scripts/bundle.sh BUILD DIR [STAGE]
# BUILD: build directory, made when missing. DIR: where the bundle is written, new or empty.
# STAGE: keep what `meson install` gives here (below STAGE/usr), for the Debian package.
set -eu

build=$1 dir=$2
top=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=${3:-$work/stage}

[ -f "$build/build.ninja" ] ||
    meson setup "$build" "$top" -Dbundle=true -Dtests=false -Dpkgconfig.relocatable=true --prefix=/usr
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

# What is glibc's own stays the system's; so do the parts that must fit it.
system='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libutil|libnss_.*|libanl)\.so'
{ ldd "$dir/bin/abx-server" "$lib/abx-command-host" && ldd "$lib"/abx-*.so; } |
    awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u | grep -vE "$system" |
    while read -r name path; do
        cp -L "$path" "$lib/$name"
        chmod 644 "$lib/$name"
        # The licence goes along.
        real=$(realpath "$path")
        package=$(dpkg-query -S "*/$(basename "$(dirname "$real")")/$(basename "$real")" 2>/dev/null | head -n 1 | cut -d: -f1)
        [ -n "$package" ] && [ -f "/usr/share/doc/$package/copyright" ] &&
            install -D -m 644 "/usr/share/doc/$package/copyright" "$dir/share/doc/abx-server/licenses/$package"
    done
echo "bundle: $dir, $(du -sm "$dir" | cut -f1) MB"
