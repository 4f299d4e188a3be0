# What bundle.sh and deb.sh ask about the libraries of programs. CROSS (such as aarch64-linux-gnu): for that machine, by its
# compiler and binutils; else for this one.

# The names of the libraries that these programs ask for.
needed() { "${CROSS:+$CROSS-}readelf" -d "$@" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u; }

# The file that the name of a library leads to; nothing when there is none.
library() {
    found=$("${CROSS:+$CROSS-}gcc" -print-file-name="$1")
    [ "$found" = "$1" ] || realpath "$found"
}

# The Debian package (NAME or NAME:ARCH) that a file is from; nothing when it is from none. /usr/lib may be written /lib there.
package() {
    dpkg-query -S "*/$(basename "$(dirname "$1")")/$(basename "$1")" 2>/dev/null | head -n 1 | sed 's/: .*//'
}

# linux-x86_64, linux-arm64: as in the names of what is given out.
platform() {
    case ${CROSS:-$(uname -m)} in
    aarch64*) echo linux-arm64 ;;
    *) echo "linux-${CROSS:-$(uname -m)}" | sed 's/^\(linux-[^-]*\).*/\1/' ;;
    esac
}

# amd64, arm64: as Debian calls them.
debian_arch() {
    case $(platform) in
    linux-arm64) echo arm64 ;;
    *) dpkg --print-architecture ;;
    esac
}
