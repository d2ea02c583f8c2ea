# shellcheck shell=sh
# Sourced, under `set -eu`, by the steps of a build that reach the network. What a machine needs for that is mounted as a build secret;
# all of them are optional, none leaves a trace in a layer:
#   ca    certificates to trust, PEM
#   pip   pip's configuration file
#   uv    uv's configuration file
#   apt   a sources.list
apt_options="--quiet=2 --option Dpkg::Use-Pty=0"
if [ -s /run/secrets/ca ]; then
    export SSL_CERT_FILE=/run/secrets/ca PIP_CERT=/run/secrets/ca
    apt_options="$apt_options --option Acquire::https::CAInfo=/run/secrets/ca"
fi
if [ -s /run/secrets/pip ]; then
    export PIP_CONFIG_FILE=/run/secrets/pip
fi
if [ -s /run/secrets/uv ]; then
    export UV_CONFIG_FILE=/run/secrets/uv
fi
if [ -s /run/secrets/apt ]; then
    apt_options="$apt_options --option Dir::Etc::sourcelist=/run/secrets/apt --option Dir::Etc::sourceparts=-"
fi

# apt_install PACKAGE...: brings what is installed up to date, installs the packages, leaves no lists and caches.
# shellcheck disable=SC2086  # the options are words
apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get $apt_options update
    apt-get $apt_options upgrade --yes > /dev/null
    apt-get $apt_options install --yes --no-install-recommends "$@" > /dev/null
    apt-get clean
    rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old /var/log/apt /var/log/*.log
}
