#!/bin/sh
# Makes all that is given out: scripts/dist.sh [OUT (dist)] [BUILD (build-dist)]
#   abx-server-VERSION-linux-ARCH.tar.gz  the bundle        abx-server_VERSION_ARCH.deb  the Debian package
#   abx-server-VERSION.spdx.json          what is in it     abx-server-VERSION.tar.gz    the sources
#   SHA256SUMS
set -eu
cd "$(dirname "$0")/.."

out=${1:-dist} build=${2:-build-dist}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(sed -n "s/^  version: '\(.*\)',/\1/p" meson.build)
name=abx-server-$version-linux-$(uname -m)
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
    export SOURCE_DATE_EPOCH
fi

rm -rf "$out"
mkdir -p "$out"
scripts/bundle.sh "$build" "$work/$name" "$work/stage"
scripts/sbom.py "$work/$name" "$version" "$out/abx-server-$version.spdx.json"
cp "$out/abx-server-$version.spdx.json" "$work/$name/share/doc/abx-server/sbom.spdx.json"
pack() { tar -C "$1" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$2" | gzip -9n; }
pack "$work" "$name" >"$out/$name.tar.gz"
scripts/deb.sh "$work/stage" "$version" "$out/abx-server_${version}_$(dpkg --print-architecture).deb"
if git rev-parse --git-dir >/dev/null 2>&1; then
    git archive --format=tar --prefix="abx-server-$version/" HEAD | gzip -9n >"$out/abx-server-$version.tar.gz"
fi
(cd "$out" && sha256sum -- * >"$work/sums" && mv "$work/sums" SHA256SUMS)
ls -l "$out"
