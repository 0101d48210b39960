#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes two packages for one architecture: the static command with its documentation, and the library for programs that
# lift themselves, which needs the C library of the machine:
#
#   ci/package.sh ARCH FORMAT...    ARCH is x86_64 or aarch64; FORMAT is tar, deb or rpm
#
# FROM      the folder with hugelift and libhugelift_inside.so, both stripped, and third-party.txt
#           (target/dist/ARCH)
# LIBRARY   the folder with libhugelift.so.0 and libhugelift.a, both stripped (target/dist/library-ARCH)
# MANUAL    the folder that ci/manual.sh has filled (target/manual)
# TO        the folder for the packages (dist)
# LEVEL     of compression, 1 to 9 (6)
# SOURCE_DATE_EPOCH  the time of all files, in seconds since 1970 (that of the last commit)
# MAINTAINER         "NAME <ADDRESS>" of who makes the packages (the author of the last commit)
#
# The same files make the same bytes: names are sorted, times, owners and modes are fixed, and no compressor uses
# threads, whose number would show in its output.
set -euo pipefail
umask 022
export LC_ALL=C
cd "$(dirname "$0")/.."
arch=$1
formats=("${@:2}")
built=${CARGO_TARGET_DIR:-target}
from=${FROM:-$built/dist/$arch} library=${LIBRARY:-$built/dist/library-$arch} manual=${MANUAL:-$built/manual} level=${LEVEL:-6}
mkdir -p "${TO:=dist}"
to=$(cd "$TO" && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n1)

of_commit() { # VARIABLE FORMAT: what the last commit says, if there is one
  git log -1 --format="$2" 2>/dev/null || {
    echo "ci/package.sh: set $1: this is no git checkout that would tell it" >&2
    exit 1
  }
}
epoch=${SOURCE_DATE_EPOCH:-$(of_commit SOURCE_DATE_EPOCH %ct)}
maintainer=${MAINTAINER:-$(of_commit MAINTAINER '%an <%ae>')}
export SOURCE_DATE_EPOCH=$epoch

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Puts what each package of the command has below the folder $1, to be used in $2.
stage() {
  local documents=$1$2/share/doc/hugelift
  DESTDIR=$1 PREFIX=$2 COMMAND=$from LIBRARY='' MANUAL=$manual ci/install.sh install
  gzip -9n "$1$2"/share/man/man1/*
  install -D -m644 -t "$documents" "$from/third-party.txt"
  stage_pages "$documents"
}

# Puts the pages, the book and the examples into the folder $1. They lie as in the source, and are not compressed, so that
# their links lead to each other. What leads to source code becomes plain text.
stage_pages() {
  local file mode
  find ./*.md docs examples systemd -type f ! -name '.*' ! -name '*~' | while read -r file; do
    case $file in *.sh) mode=755 ;; *) mode=644 ;; esac
    install -D -m$mode "$file" "$1/$file"
  done
  find "$1" -name '*.md' -exec sed -i -E 's/\[([^]]*)\]\((crates|fuzz)\/[^)]*\)/\1/g' {} +
}

# Puts the library below the folder $1, to be used in $2, with its libraries in $2/$3; $4 is the package's name.
stage_library() {
  DESTDIR=$1 PREFIX=$2 COMMAND='' LIBRARY=$library LIBDIR=$3 ci/install.sh install
  install -D -m644 -t "$1$2/share/doc/$4" "$from/third-party.txt"
}

# Prints the newest version of the C library that libhugelift.so needs, as in 2.34. Rust needs 2.17.
needed_libc() {
  {
    echo 2.17
    readelf -VW "$library/libhugelift.so.0" 2>/dev/null | sed -n 's/.*Name: GLIBC_\([0-9.]*\) .*/\1/p'
  } | sort -V | tail -n1
}

stamp() { find "$1" -exec touch -h -d "@$epoch" {} +; }

make_tar() {
  stage "$work/tar" /usr/local
  install -m644 LICENSE "$work/tar/usr/local/share/doc/hugelift"
  tar_of "$work/tar" "hugelift-$version-$arch"
  stage_library "$work/tar-library" /usr/local lib libhugelift
  install -m644 LICENSE "$work/tar-library/usr/local/share/doc/libhugelift"
  tar_of "$work/tar-library" "libhugelift-$version-$arch"
}

tar_of() { # ROOT NAME
  local name=$2
  mv "$1/usr/local" "$work/$name"
  tar -C "$work" --format=gnu --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -c "$name" |
    gzip -n"$level" >"$to/$name.tar.gz"
}

make_deb() {
  local root=$work/deb
  stage "$root" /usr
  # zsh of Debian looks for completions of packages here.
  mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
  install -D -m755 -t "$root/DEBIAN" packaging/deb/hugelift/{postinst,prerm,postrm}
  deb_of "$root" hugelift
  root=$work/deb-library
  stage_library "$root" /usr "lib/$arch-linux-gnu" libhugelift-dev
  # Debian's libraries are not executable.
  chmod 644 "$root/usr/lib/$arch-linux-gnu/libhugelift.so.0"
  install -D -m644 -t "$root/DEBIAN" packaging/deb/libhugelift-dev/{shlibs,triggers}
  deb_of "$root" libhugelift-dev
}

deb_of() { # ROOT NAME
  local root=$1 name=$2 documents=$1/usr/share/doc/$2 debian size
  case $arch in x86_64) debian=amd64 ;; aarch64) debian=arm64 ;; esac
  install -m644 packaging/deb/copyright "$documents"
  gzip -9n "$documents/third-party.txt"
  printf '%s (%s) unstable; urgency=medium\n\n  * CHANGELOG.md of the package hugelift lists the changes.\n\n -- %s  %s\n' \
    "$name" "$version" "$maintainer" "$(date -u -d "@$epoch" '+%a, %d %b %Y %H:%M:%S +0000')" |
    gzip -9n >"$documents/changelog.gz"
  install -D -m644 "packaging/deb/$name/lintian-overrides" "$root/usr/share/lintian/overrides/$name"
  size=$(find "$root" -type f -printf '%s\n' | awk '{n += int(($1 + 1023) / 1024)} END {print n}')
  sed -e "s|@VERSION@|$version|" -e "s|@ARCH@|$debian|" -e "s|@MAINTAINER@|$maintainer|" -e "s|@SIZE@|$size|" \
    -e "s|@LIBC@|$(needed_libc)|" "packaging/deb/$name/control.in" >"$root/DEBIAN/control"
  (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
  stamp "$root"
  # xz, since dpkg of some distributions knows no zstd.
  DPKG_DEB_THREADS_MAX=1 dpkg-deb --root-owner-group -Zxz "-z$level" --build "$root" \
    "$to/${name}_${version}_$debian.deb" >/dev/null
}

make_rpm() {
  stage "$work/rpm" /usr
  rpm_of "$work/rpm" hugelift
  stage_library "$work/rpm-library" /usr lib64 libhugelift-devel
  rpm_of "$work/rpm-library" libhugelift-devel
}

rpm_of() { # ROOT NAME
  local root=$1 name=$2
  install -D -m644 LICENSE "$root/usr/share/licenses/$name/LICENSE"
  stamp "$root"
  # Its own folders, and all its files.
  (cd "$root" && find . -type d -path '*hugelift*' -printf '%%dir "/%P"\n' -o ! -type d -printf '"/%P"\n') |
    sort >"$work/files"
  rpmbuild --quiet -bb --target "$arch" "packaging/rpm/$name.spec" \
    --define "_topdir $work/rpmbuild" --define "_rpmdir $to" \
    --define "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" \
    --define "_buildhost localhost" --define "use_source_date_epoch_as_buildtime 1" \
    --define "clamp_mtime_to_source_date_epoch 1" --define "_binary_payload w$level.xzdio" \
    --define "package_libc $(needed_libc)" \
    --define "package_version $version" --define "package_maintainer $maintainer" \
    --define "package_root $root" --define "package_files $work/files" >/dev/null
}

for format in "${formats[@]}"; do
  case $format in
    tar | deb | rpm) "make_$format" ;;
    *)
      echo "ci/package.sh: '$format' is not a format: tar, deb, rpm" >&2
      exit 2
      ;;
  esac
done
