#!/bin/sh
# Installs, upgrades and removes edgefaas on Linux (x86_64, 64-bit ARM).
set -eu

# The project has no release address yet: there is no default.
RELEASES=${EDGEFAAS_RELEASES-}
# A minisign public key: its text (RW…) or a file.
KEY=${EDGEFAAS_PUBLIC_KEY-}
PREFIX=/usr/local
DATA_DIR=/var/lib/edgefaas
CONFIG=/etc/edgefaas.toml
KEPT=/var/cache/edgefaas
UNIT=/etc/systemd/system/edgefaas.service
INSTALLED=$PREFIX/share/edgefaas/installed-files

usage() {
    cat <<'TEXT'
Usage:
  install.sh --from FOLDER --key KEY     install or upgrade from a folder, without a network
  install.sh --key KEY                   the same from the address in EDGEFAAS_RELEASES
  install.sh --uninstall [--purge]       remove edgefaas; with --purge its data, configuration and user too

Options:
  --from FOLDER|URL   folder or address with SHA256SUMS, SHA256SUMS.minisig and the packages
  --key KEY           minisign public key of the packages (its text or a file) [default: EDGEFAAS_PUBLIC_KEY]
  --unsigned          check only the SHA-256 sums, of packages that you built yourself
  --tarball           install the tarball in /usr/local on a Debian system too
TEXT
}

say() { printf '%s\n' "$*"; }
fail() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }
need() { have "$1" || fail "$1 is not installed; install it and run this script again"; }
with_systemd() { [ -d /run/systemd/system ] && have systemctl; }
is_package_installed() { have dpkg-query && dpkg-query -W -f '${db:Status-Status}' edgefaas 2>/dev/null | grep -q '^installed$'; }

architecture() {
    case $(uname -m) in
        x86_64 | amd64) arch=x86_64 deb_arch=amd64 ;;
        aarch64 | arm64) arch=aarch64 deb_arch=arm64 ;;
        *) fail "there is no package for $(uname -m), only for x86_64 and aarch64 (64-bit ARM)" ;;
    esac
    # A Raspberry Pi with a 64-bit kernel may run 32-bit programs only.
    if have getconf && [ "$(getconf LONG_BIT)" != 64 ]; then
        fail "this system runs 32-bit programs; edgefaas needs a 64-bit system, such as Raspberry Pi OS (64-bit)"
    fi
}

# fetch NAME: a file of the release, into the working folder.
fetch() {
    case $from in
        http://* | https://*)
            if have curl; then
                curl --fail --silent --show-error --location --proto '=https,http' --output "$work/$1" "$from/$1" || return 1
            elif have wget; then
                wget --quiet --output-document="$work/$1" "$from/$1" || return 1
            else
                fail "curl and wget are missing; install one of them, or use --from with a folder"
            fi
            ;;
        *) [ -f "$from/$1" ] && cp "$from/$1" "$work/$1" ;;
    esac
}

public_key() {
    if [ -f "$KEY" ]; then
        sed -n '/^untrusted comment:/!{p;q;}' "$KEY"
    else
        printf '%s\n' "$KEY"
    fi
}

# part FILE SKIP COUNT: bytes of a file.
part() { dd if="$1" bs=1 skip="$2" count="$3" 2>/dev/null; }

# The signature format of minisign: 2 bytes of algorithm, 8 of key id, 64 of Ed25519; the second one covers the first and the comment.
verify_with_openssl() {
    public_key | base64 -d >"$work/key" 2>/dev/null || return 1
    sed -n 2p "$work/SHA256SUMS.minisig" | base64 -d >"$work/signature" 2>/dev/null || return 1
    sed -n 4p "$work/SHA256SUMS.minisig" | base64 -d >"$work/comment-signature" 2>/dev/null || return 1
    [ "$(wc -c <"$work/key")" -eq 42 ] && [ "$(wc -c <"$work/signature")" -eq 74 ] || return 1
    [ "$(part "$work/key" 2 8 | od -An -tx1)" = "$(part "$work/signature" 2 8 | od -An -tx1)" ] || return 1
    { printf '\060\052\060\005\006\003\053\145\160\003\041\000' && part "$work/key" 10 32; } >"$work/key.der"
    part "$work/signature" 10 64 >"$work/signature.raw"
    case $(part "$work/signature" 0 2) in
        ED) openssl dgst -blake2b512 -binary "$work/SHA256SUMS" >"$work/signed" ;;
        Ed) cp "$work/SHA256SUMS" "$work/signed" ;;
        *) return 1 ;;
    esac
    openssl pkeyutl -verify -pubin -keyform DER -inkey "$work/key.der" -rawin -in "$work/signed" \
        -sigfile "$work/signature.raw" >/dev/null 2>&1 || return 1
    { cat "$work/signature.raw" && sed -n '3s/^trusted comment: //p' "$work/SHA256SUMS.minisig" | tr -d '\n'; } >"$work/signed-comment"
    openssl pkeyutl -verify -pubin -keyform DER -inkey "$work/key.der" -rawin -in "$work/signed-comment" \
        -sigfile "$work/comment-signature" >/dev/null 2>&1
}

verify() {
    fetch SHA256SUMS || fail "$from has no SHA256SUMS; nothing was installed"
    if [ "$signed" = yes ]; then
        [ -n "$KEY" ] || fail "which key signs the packages? Give --key KEY or EDGEFAAS_PUBLIC_KEY; --unsigned is for packages that you built yourself"
        fetch SHA256SUMS.minisig || fail "$from has no SHA256SUMS.minisig: the packages are not signed; nothing was installed"
        if have minisign; then
            minisign -V -q -P "$(public_key)" -m "$work/SHA256SUMS" >/dev/null 2>&1 || bad_signature
        elif have openssl && openssl pkeyutl -help 2>&1 | grep -q rawin; then
            verify_with_openssl || bad_signature
        else
            fail "the signature needs minisign, or openssl 3; install one of them (Debian: apt install minisign)"
        fi
    fi
    grep "  $package\$" "$work/SHA256SUMS" >"$work/sum" || fail "$from has no $package; nothing was installed"
    fetch "$package" || fail "$from/$package cannot be read; nothing was installed"
    (cd "$work" && sha256sum -c sum >/dev/null 2>&1) || fail "$package does not have the sum in SHA256SUMS: it is damaged or was changed; nothing was installed"
}

bad_signature() { fail "the signature of SHA256SUMS in $from is not valid for this key; nothing was installed"; }

version_of() { sed -n "s/^[0-9a-f]*  edgefaas-\\([^ ]*\\)-$arch-linux\\.tar\\.gz\$/\\1/p" "$work/SHA256SUMS" | tail -n 1; }

install_package() {
    # A file in a folder that the user _apt can read.
    chmod 755 "$work"
    if have apt-get; then
        DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends --allow-downgrades --reinstall \
            -o Dpkg::Options::=--force-confold "$work/$package"
    else
        dpkg --force-confold -i "$work/$package"
    fi
    # `edgefaas upgrade` returns to it if a new version does not get ready.
    install -d -m 755 "$KEPT"
    cp "$work/$package" "$KEPT/installed.deb.new"
    mv -f "$KEPT/installed.deb.new" "$KEPT/installed.deb"
}

# put SOURCE TARGET MODE: replaces a file atomically and remembers its name.
put() {
    mkdir -p "$(dirname "$2")"
    cp "$1" "$2.new"
    chmod "$3" "$2.new"
    mv -f "$2.new" "$2"
    printf '%s\n' "$2" >>"$work/installed"
}

install_tarball() {
    need tar
    tar -xzf "$work/$package" -C "$work"
    folder=$work/${package%.tar.gz}
    "$folder/usr/bin/edgefaas" --version >/dev/null || fail "the program in $package does not run here; nothing was installed"
    if ! id edgefaas >/dev/null 2>&1; then
        need useradd
        useradd --system --user-group --home-dir "$DATA_DIR" --shell /usr/sbin/nologin edgefaas
    fi
    [ -d "$DATA_DIR" ] || install -d -m 700 -o edgefaas -g edgefaas "$DATA_DIR"
    put "$folder/usr/bin/edgefaas" "$PREFIX/bin/edgefaas" 755
    (cd "$folder/usr/share" && find . -type f) >"$work/shared"
    while IFS= read -r name; do
        put "$folder/usr/share/$name" "$PREFIX/share/${name#./}" 644
    done <"$work/shared"
    sed "s|/usr/bin/edgefaas|$PREFIX/bin/edgefaas|" "$folder/usr/lib/systemd/system/edgefaas.service" >"$work/unit"
    if [ -d /etc/systemd/system ]; then put "$work/unit" "$UNIT" 644; fi
    if [ -e "$CONFIG" ]; then
        cmp -s "$folder/etc/edgefaas.toml" "$CONFIG" || say "$CONFIG stays as it is"
    else
        cp "$folder/etc/edgefaas.toml" "$CONFIG"
        chmod 644 "$CONFIG"
    fi
    # Files of an earlier version that this one does not have.
    if [ -f "$INSTALLED" ]; then
        while IFS= read -r name; do
            grep -qxF "$name" "$work/installed" || rm -f "$name"
        done <"$INSTALLED"
    fi
    mkdir -p "$(dirname "$INSTALLED")"
    mv "$work/installed" "$INSTALLED"
    if with_systemd; then
        systemctl daemon-reload
        systemctl enable --quiet edgefaas
        systemctl restart edgefaas
    fi
}

uninstall() {
    if is_package_installed; then
        if [ "$purge" = yes ]; then dpkg --purge edgefaas; else dpkg --remove edgefaas; fi
    elif [ -f "$INSTALLED" ]; then
        if with_systemd; then systemctl disable --quiet --now edgefaas || true; fi
        while IFS= read -r name; do rm -f "$name"; done <"$INSTALLED"
        rm -rf "$PREFIX/share/edgefaas" "$PREFIX/bin/edgefaas.previous" "$PREFIX/bin/edgefaas.unverified"
        rmdir "$PREFIX/share/doc/edgefaas" 2>/dev/null || true
        if with_systemd; then systemctl daemon-reload; fi
        if [ "$purge" = yes ]; then
            rm -rf "$DATA_DIR" "$CONFIG" "$UNIT.d"
            if id edgefaas >/dev/null 2>&1; then userdel edgefaas; fi
        fi
    elif [ "$purge" = yes ] && have dpkg-query && dpkg-query -W edgefaas >/dev/null 2>&1; then
        dpkg --purge edgefaas
    else
        fail "edgefaas is not installed by a package or by this script"
    fi
    if [ "$purge" = yes ]; then
        say "edgefaas and its data are removed"
    else
        say "edgefaas is removed; its data is in $DATA_DIR, its configuration in $CONFIG (--purge removes both)"
    fi
}

action=install purge=no signed=yes kind=
from=$RELEASES
while [ $# -gt 0 ]; do
    case $1 in
        --from | --key)
            [ $# -gt 1 ] || fail "$1 needs a value"
            if [ "$1" = --from ]; then from=$2; else KEY=$2; fi
            shift
            ;;
        --unsigned) signed=no ;;
        --tarball) kind=tarball ;;
        --uninstall) action=uninstall ;;
        --purge) purge=yes ;;
        -h | --help)
            usage
            exit 0
            ;;
        *)
            usage >&2
            fail "unknown option $1"
            ;;
    esac
    shift
done
if [ "$purge" = yes ] && [ "$action" = install ]; then fail "--purge is for --uninstall"; fi
[ "$(id -u)" = 0 ] || fail "run it as root, such as: sudo sh install.sh …"
if [ "$action" = uninstall ]; then
    uninstall
    exit 0
fi

[ -n "$from" ] || fail "from where? edgefaas has no release address yet: give --from FOLDER, or an address in EDGEFAAS_RELEASES"
architecture
need sha256sum
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
if [ -z "$kind" ]; then
    if have dpkg && [ ! -f "$INSTALLED" ]; then kind=deb; else kind=tarball; fi
fi
if [ "$kind" = tarball ] && is_package_installed; then
    fail "the Debian package of edgefaas is installed: upgrade it without --tarball, or remove it first with --uninstall"
fi
# Its name has the version, which only SHA256SUMS tells.
fetch SHA256SUMS || fail "$from has no SHA256SUMS; nothing was installed"
version=$(version_of)
[ -n "$version" ] || fail "$from has no package for $arch; nothing was installed"
if [ "$kind" = deb ]; then package=edgefaas_${version}-1_$deb_arch.deb; else package=edgefaas-$version-$arch-linux.tar.gz; fi
verify
if [ "$kind" = deb ]; then install_package; else install_tarball; fi
say "edgefaas $version is installed"
if with_systemd; then
    say "look at it with: systemctl status edgefaas; sudo edgefaas status"
else
    say "there is no systemd here; start it with: edgefaas run --data-dir $DATA_DIR --config $CONFIG"
fi
