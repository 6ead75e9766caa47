#!/usr/bin/env bash
# Installs by apt the Debian packages that Tessera needs and that are not there yet.
#
#   scripts/install.sh [--tests] [--slurm] [--quickstart]
#
# --slurm is for the test of the batch files, which is skipped without it.
#
# As root it asks nothing. Otherwise it prints the command that would install what is missing and exits with 77; it
# never calls sudo itself. With everything in place it does nothing, whoever runs it.
set -euo pipefail

packages=(
    cmake ninja-build g++ pkg-config ccache
    libopenmpi-dev openmpi-bin libdnnl-dev libhdf5-dev libhwloc-dev libxxhash-dev
    libcli11-dev nlohmann-json3-dev libfmt-dev
)
# Ubuntu 22.04 has no package of toml++: its headers, put in /usr/local/include, do as well.
[[ -e /usr/local/include/toml++/toml.h ]] || packages+=(libtomlplusplus-dev)
for option in "$@"; do
    case $option in
        --tests) packages+=(catch2 python3 python3-venv) ;;
        --slurm) packages+=(slurm-wlm munge iproute2) ;;
        --quickstart) packages+=(bible-kjv) ;;
        -h | --help)
            sed -n '2,9s/^# \{0,1\}//p' "$0"
            exit 0
            ;;
        *)
            echo "install.sh: unknown option $option (--tests, --slurm, --quickstart)" >&2
            exit 64
            ;;
    esac
done

if ! command -v apt-get > /dev/null; then
    echo "install.sh: there is no apt-get here; install what these Debian packages hold: ${packages[*]}" >&2
    exit 77
fi

missing=()
for package in "${packages[@]}"; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null || true)
    [[ $status == installed ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
    exit 0
fi

if [[ $(id -u) -ne 0 ]]; then
    echo "install.sh: ${#missing[@]} packages are missing. Install them with" >&2
    echo "    sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
    echo "and run this again." >&2
    exit 77
fi
echo "install.sh: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}" > /dev/null
