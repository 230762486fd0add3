#!/usr/bin/env bash
# What `make test-web` needs beside Python: a Chromium and its driver. As root on Debian it is installed; elsewhere it is
# said what is missing, and the tests skip.
set -euo pipefail

has_browser() {
  { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null &&
    command -v chromedriver >/dev/null
}

if has_browser; then
  exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "test-web: there is no chromium with its chromedriver, and only root on Debian can have them installed here:" \
    "apt-get install chromium chromium-driver. The tests in a browser are skipped."
  exit 0
fi
echo "Installing chromium and its driver"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >/dev/null
apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core >/dev/null
