#!/bin/sh
# Makes a Debian package of what `meson install` gave: scripts/deb.sh STAGE VERSION OUT.deb
# STAGE holds usr/...; depends on what the programs need, recommends what only the modules need.
# CROSS: as for bundle.sh.
set -eu

stage=$1 version=$2 out=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -a "$stage/." "$work/"
lib=$work/usr/lib/abx-server
# shellcheck source=scripts/libraries.sh
. "$(dirname "$0")/libraries.sh"

# The packages of the libraries that these programs name, with the least version: the one that we built with.
packages_of() {
    needed "$@" | while read -r name; do
        path=$(library "$name")
        [ -z "$path" ] || package "$path"
    done | sort -u | while read -r package; do
        dpkg-query -W -f '${Package} (>= ${source:Upstream-Version})\n' "$package" | head -n 1
    done
}
join() { paste -sd , - | sed 's/,/, /g'; }

depends=$(packages_of "$work/usr/bin/abx-server" "$lib/abx-command-host")
recommends=$(packages_of "$lib"/abx-*.so | grep -vxF "$depends" || true)

find "$work/usr/share/man" -type f ! -name '*.gz' -exec gzip -9n {} +
mkdir -p "$work/DEBIAN"
cat >"$work/DEBIAN/control" <<END
Package: abx-server
Version: $version
Architecture: $(debian_arch)
Maintainer: abx-server developers <abx-server@localhost>
Section: net
Priority: optional
Installed-Size: $(du -sk "$work/usr" | cut -f1)
Depends: $(echo "$depends" | join)
Recommends: $(echo "$recommends" | join), ca-certificates
Suggests: gcc, python3, git, chromium
Description: server of an agent sandbox
 Files, processes, terminals, system, code runs, git, a browser, coding agents
 and commands written in C, over HTTP and WebSocket.
END
(cd "$work" && find usr -type f -exec md5sum {} + | sort -k 2 >DEBIAN/md5sums)
mkdir -p "$(dirname "$out")"
dpkg-deb --root-owner-group -b "$work" "$out" >/dev/null
echo "deb: $out"
