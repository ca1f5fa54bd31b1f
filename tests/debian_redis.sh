#!/usr/bin/env bash
# Unpacks Debian's redis-server into a folder, without root and without touching the system, and leaves a launcher
# there: FOLDER/redis-server. The gateway's tests run against it once more, beside the embedded server.
#
#     bash tests/debian_redis.sh .cache/debian-redis
set -euo pipefail
target="$1"
mkdir -p "$target"
target="$(cd "$target" && pwd)"

if ! command -v apt-get >/dev/null; then
    found="$(command -v redis-server || true)"
    [ -n "$found" ] || { echo "no apt-get and no redis-server on PATH: install redis-server 7 or newer" >&2; exit 1; }
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$found" >"$target/redis-server"
    chmod +x "$target/redis-server"
    exit 0
fi

lists="$target/lists"
mkdir -p "$lists/partial" "$target/archives/partial" "$target/root"
apt=(apt-get -qq -o "Dir::State::Lists=$lists" -o "Dir::Cache=$target/archives" -o APT::Sandbox::User=root)
"${apt[@]}" update
(
    cd "$target/archives"
    for package in redis-server redis-tools libjemalloc2 liblua5.1-0 liblzf1 lua-cjson lua-bitop libatomic1; do
        "${apt[@]}" download "$package"
    done
    for archive in ./*.deb; do dpkg -x "$archive" "$target/root"; done
)
rm -rf "$lists" "$target/archives"
libraries="$(find "$target/root" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)"
printf '#!/bin/sh\nLD_LIBRARY_PATH="%s" exec "%s" "$@"\n' "$libraries" "$target/root/usr/bin/redis-server" >"$target/redis-server"
chmod +x "$target/redis-server"
"$target/redis-server" --version
