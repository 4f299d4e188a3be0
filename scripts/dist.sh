#!/bin/sh
# Makes all that is given out: scripts/dist.sh [OUT (dist)] [BUILD (build-dist)]
#   abx-server-VERSION-PLATFORM.tar.gz         the bundle        abx-server_VERSION_ARCH.deb  the Debian package
#   abx-server-VERSION-PLATFORM.spdx.json      what is in it     abx-server-VERSION.tar.gz    the sources, by meson dist
#   SHA256SUMS
# CROSS=aarch64-linux-gnu: for that machine, beside what OUT has, and without the sources.
# The sources are what is committed; programs are built from the tree as it is.
set -eu
cd "$(dirname "$0")/.."
# shellcheck source=scripts/libraries.sh
. scripts/libraries.sh

out=${1:-dist} build=${2:-build-dist${CROSS:+-$CROSS}}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(sed -n "s/^  version: '\(.*\)',/\1/p" meson.build)
name=abx-server-$version-$(platform)
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$([ -e .git ] && git log -1 --format=%ct || date +%s)
    export SOURCE_DATE_EPOCH
fi

[ -n "${CROSS:-}" ] || rm -rf "$out"
mkdir -p "$out"
scripts/bundle.sh "$build" "$work/$name" "$work/stage"
scripts/sbom.py "$work/$name" "$version" "$out/$name.spdx.json"
cp "$out/$name.spdx.json" "$work/$name/share/doc/abx-server/sbom.spdx.json"
pack() { tar -C "$1" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$2" | gzip -9n; }
pack "$work" "$name" >"$out/$name.tar.gz"
scripts/deb.sh "$work/stage" "$version" "$out/abx-server_${version}_$(debian_arch).deb"
if [ -e .git ] && [ -z "${CROSS:-}" ]; then
    # meson dist gives the committed files the time of its checkout; packed again, the same commit gives the same bytes.
    [ -z "$(git status --porcelain --untracked-files=no)" ] ||
        echo "dist: what is not committed is not in the sources" >&2
    meson dist -C "$build" --no-tests --allow-dirty --formats gztar >"$work/log" 2>&1 || {
        cat "$work/log" >&2
        exit 1
    }
    mkdir "$work/sources"
    tar -C "$work/sources" -xzf "$build/meson-dist/abx-server-$version.tar.gz"
    pack "$work/sources" "abx-server-$version" >"$out/abx-server-$version.tar.gz"
fi
(cd "$out" && rm -f SHA256SUMS && sha256sum -- * >"$work/sums" && mv "$work/sums" SHA256SUMS)
ls -l "$out"
