#!/bin/sh
# Makes sure that what a build needs (with "test" also the tests, with "dist" also the packages) is installed, and says
# what it installs.
#   scripts/setup.sh [build | test | dist [arm64]]
# Nothing need be there before it, not even make. Debian 12 and its like: by apt, as root or with sudo. Elsewhere: tells what is
# missing and stops. "dist arm64": the cross compiler and arm64's libraries instead of this machine's (dpkg gets that
# architecture); Debian's libwslay-dev and libhttp-parser-dev can't be there for both, so this needs a root of its own.
set -eu

tools="make gcc libc6-dev meson ninja-build pkg-config node-llhttp python3"
libraries="libuv1-dev libjansson-dev nettle-dev libyaml-dev zlib1g-dev libwslay-dev libgit2-dev libarchive-dev libsqlite3-dev
libcurl4-openssl-dev"
tests="check python3-venv git procps curl jq chromium fonts-dejavu-core nodejs npm man-db mandoc zsh systemd"
dist="binutils mmdebstrap iproute2" # readelf for the bundle; the others for play_image.py and clean_root.py

want="$tools $libraries"
case "${1:-build} ${2:-}" in
"build ") ;;
"test ") want="$want $tests" ;;
"dist ") want="$want $dist" ;;
"dist arm64")
    want="$tools gcc-aarch64-linux-gnu"
    for library in libc6-dev $libraries; do
        want="$want $library:arm64"
    done
    ;;
*)
    echo "usage: scripts/setup.sh [build | test | dist [arm64]]" >&2
    exit 2
    ;;
esac

if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-query >/dev/null 2>&1; then
    missing=""
    for tool in make cc meson ninja pkg-config; do
        command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
    done
    for library in libuv jansson nettle yaml-0.1 zlib libgit2 libarchive sqlite3 libcurl; do
        pkg-config --exists "$library" 2>/dev/null || missing="$missing $library"
    done
    [ -f /usr/share/llhttp/llhttp.c ] || missing="$missing llhttp(C sources in /usr/share/llhttp)"
    [ -z "$missing" ] && exit 0
    echo "setup: this system has no apt; please install what is missing:$missing" >&2
    echo "setup: the names in Debian are: $want" >&2
    exit 1
fi

missing=""
for package in $want; do
    case "$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null)" in
    "install ok installed") ;;
    *)
        # A tool that is there from elsewhere will do.
        case $package in
        nodejs) command -v node >/dev/null 2>&1 && continue ;;
        npm | git | curl | meson) command -v "$package" >/dev/null 2>&1 && continue ;;
        esac
        missing="$missing $package"
        ;;
    esac
done
[ -z "$missing" ] && exit 0

sudo=""
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "setup: these packages are missing, and there is no sudo to install them:$missing" >&2
        exit 1
    fi
    sudo="sudo"
fi
echo "setup: installing by apt:$missing"
case $missing in
*:arm64*) $sudo dpkg --add-architecture arm64 ;;
esac
$sudo apt-get update -q
# shellcheck disable=SC2086 # a list of words
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends --no-remove $missing
