#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests: every test with the optimised build, then the fast ones again
# with address and undefined-behaviour sanitizers.
#
#   scripts/test.sh [--fast] [--all] [--no-sanitizers] [--no-python] [--no-install]
#
#   --fast           only the tests labelled fast, and no sanitizers
#   --all            also those labelled exhaustive, which take hours
#   --no-sanitizers  the optimised build only
#   --no-python      leave out the tests that need Python packages from PyPI
#   --no-install     use what is there
set -euo pipefail
cd "$(dirname "$0")/.."

install=yes python=yes sanitizers=yes select=(-LE exhaustive)
for option in "$@"; do
    case $option in
        --fast) select=(-L fast) sanitizers=no ;;
        --all) select=() ;;
        --no-sanitizers) sanitizers=no ;;
        --no-python) python=no ;;
        --no-install) install=no ;;
        -h | --help)
            sed -n '2,12s/^# \{0,1\}//p' "$0"
            exit 0
            ;;
        *)
            echo "test.sh: unknown option $option" >&2
            exit 64
            ;;
    esac
done

if [[ $install == yes ]]; then
    scripts/install.sh --tests
fi

# The packages of the tests in a virtual environment of their own, made again when the list of them changes.
interpreter=""
if [[ $python == yes ]]; then
    venv=$PWD/build/venv
    if ! cmp -s test/requirements.txt "$venv/requirements.txt"; then
        rm -rf "$venv"
        python3 -m venv "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check -r test/requirements.txt
        cp test/requirements.txt "$venv/requirements.txt"
    fi
    interpreter=$venv/bin/python
fi

# More compilers than this at once would need more memory than small machines have.
jobs=$(nproc)
memory_jobs=$(($(awk '/MemAvailable/ {print $2}' /proc/meminfo) / 2000000))
if ((memory_jobs < jobs)); then jobs=$((memory_jobs > 0 ? memory_jobs : 1)); fi

run() { # preset, build directory, arguments of ctest
    local preset=$1 build=$2
    shift 2
    cmake --preset "$preset" -DTESSERA_TESTS=ON -DTESSERA_PYTHON="$interpreter" > /dev/null
    local start=$SECONDS
    cmake --build "$build" -j "$jobs"
    local built=$SECONDS
    ctest --test-dir "$build" --output-on-failure -j 2 "$@"
    echo "test.sh: $preset: built in $((built - start)) s, tested in $((SECONDS - built)) s"
}

run release build "${select[@]}"
if [[ $sanitizers == yes ]]; then
    run debug build-debug -L fast
fi
