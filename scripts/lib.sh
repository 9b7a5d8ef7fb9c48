# What the scripts share: an environment in .venv with the pinned dependencies. Source it; it moves to the root.
#
# HEADRACE_PYTHON=3.13 chooses a version of Python, which has an environment of its own in build/python-3.13.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset PYTHONDONTWRITEBYTECODE  # what is installed is compiled when it is first imported: most of it never is

venv=.venv
pythons=(python3.11 python3.12 python3.13 python3)
if [[ -n ${HEADRACE_PYTHON:-} ]]; then
    venv=build/python-$HEADRACE_PYTHON
    pythons=("python$HEADRACE_PYTHON" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$HEADRACE_PYTHON".*/bin/python)
fi

say() { printf 'headrace: %s\n' "$*" >&2; }

# The first Python that is new enough and able to make environments (some systems package venv apart).
find_python() {
    local python
    for python in "${pythons[@]}"; do
        if "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$python"
            return
        fi
    done
    say "no usable Python ${HEADRACE_PYTHON:-} found: version 3.11 or newer is needed, with its venv module" \
        "(python3-venv on Debian)."
    return 1
}

# What an environment has to match. The place is part of it, because an editable install points at its folder.
stamp() {
    { printf '%s\n' "$PWD" "$@"; cat pyproject.toml constraints.txt; } | cksum
}

# make_venv EXTRA...: the environment with headrace, these extras and those that earlier calls asked for.
#
# Its .stamp is written last and its .unfinished is there from first to last, so an interrupted run is
# never taken for a finished one. Two scripts that start together wait for each other where flock exists.
make_venv() {
    (
        if command -v flock >/dev/null; then flock 9; fi
        update_venv "$@"
    ) 9<pyproject.toml
}

update_venv() {
    local extras python
    if [[ -e $venv && (-e $venv/.unfinished || ! -x $venv/bin/python) ]]; then
        say "removing an unfinished $venv"
        rm -rf "$venv"
    fi
    extras=$({ printf '%s\n' "$@"; cat "$venv/.extras" 2>/dev/null || true; } | sort -u | paste -sd, -)
    if [[ "$(cat "$venv/.stamp" 2>/dev/null)" == "$(stamp "$extras")" ]]; then return; fi

    if [[ ! -e $venv ]]; then
        python=$(find_python)
        say "making $venv with $("$python" --version)"
        mkdir -p "$venv"
        touch "$venv/.unfinished"
        "$python" -m venv "$venv"
    fi
    say "installing headrace[$extras] into $venv (the first time takes minutes)"
    touch "$venv/.unfinished"
    rm -f "$venv/.stamp"
    "$venv/bin/python" -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt -e ".[$extras]"
    tr , '\n' <<<"$extras" >"$venv/.extras"
    stamp "$extras" >"$venv/.stamp"
    rm "$venv/.unfinished"
}
