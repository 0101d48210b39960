#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes packages of the static command for one architecture:
#
#   ci/package.sh ARCH FORMAT...    ARCH is x86_64 or aarch64; FORMAT is tar, deb or rpm
#
# FROM      the folder with hugelift and libhugelift_inside.so, both stripped, and third-party.txt
#           (target/dist/ARCH)
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
from=${FROM:-$built/dist/$arch} manual=${MANUAL:-$built/manual} level=${LEVEL:-6}
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

# Puts what each package has below the folder $1, to be used in $2.
stage() {
  local documents=$1$2/share/doc/hugelift
  DESTDIR=$1 PREFIX=$2 COMMAND=$from LIBRARY='' MANUAL=$manual ci/install.sh install
  gzip -9n "$1$2"/share/man/man1/*
  install -D -m644 -t "$documents" README.md CHANGELOG.md "$from/third-party.txt"
}

stamp() { find "$1" -exec touch -h -d "@$epoch" {} +; }

make_tar() {
  local name=hugelift-$version-$arch
  stage "$work/tar" /usr/local
  install -m644 LICENSE "$work/tar/usr/local/share/doc/hugelift"
  mv "$work/tar/usr/local" "$work/$name"
  tar -C "$work" --format=gnu --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -c "$name" |
    gzip -n"$level" >"$to/$name.tar.gz"
}

make_deb() {
  local root=$work/deb debian size
  case $arch in x86_64) debian=amd64 ;; aarch64) debian=arm64 ;; esac
  stage "$root" /usr
  local documents=$root/usr/share/doc/hugelift
  install -m644 packaging/deb/copyright "$documents"
  # zsh of Debian looks for completions of packages here.
  mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
  gzip -9n "$documents"/{README.md,CHANGELOG.md,third-party.txt}
  printf 'hugelift (%s) unstable; urgency=medium\n\n  * CHANGELOG.md.gz in this folder lists the changes.\n\n -- %s  %s\n' \
    "$version" "$maintainer" "$(date -u -d "@$epoch" '+%a, %d %b %Y %H:%M:%S +0000')" | gzip -9n >"$documents/changelog.gz"
  install -D -m644 packaging/deb/lintian-overrides "$root/usr/share/lintian/overrides/hugelift"
  size=$(find "$root" -type f -printf '%s\n' | awk '{n += int(($1 + 1023) / 1024)} END {print n}')
  mkdir "$root/DEBIAN"
  sed -e "s|@VERSION@|$version|" -e "s|@ARCH@|$debian|" -e "s|@MAINTAINER@|$maintainer|" -e "s|@SIZE@|$size|" \
    packaging/deb/control.in >"$root/DEBIAN/control"
  install -m755 packaging/deb/prerm packaging/deb/postrm "$root/DEBIAN"
  (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
  stamp "$root"
  # xz, since dpkg of some distributions knows no zstd.
  DPKG_DEB_THREADS_MAX=1 dpkg-deb --root-owner-group -Zxz "-z$level" --build "$root" \
    "$to/hugelift_${version}_$debian.deb" >/dev/null
}

make_rpm() {
  local root=$work/rpm
  stage "$root" /usr
  install -D -m644 LICENSE "$root/usr/share/licenses/hugelift/LICENSE"
  stamp "$root"
  # Its own folders, and all its files.
  (cd "$root" && find . -type d -path '*/hugelift*' -printf '%%dir "/%P"\n' -o ! -type d -printf '"/%P"\n') |
    sort >"$work/files"
  rpmbuild --quiet -bb --target "$arch" packaging/rpm/hugelift.spec \
    --define "_topdir $work/rpmbuild" --define "_rpmdir $to" \
    --define "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" \
    --define "_buildhost localhost" --define "use_source_date_epoch_as_buildtime 1" \
    --define "clamp_mtime_to_source_date_epoch 1" --define "_binary_payload w$level.xzdio" \
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
