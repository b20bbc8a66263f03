# What the steps of .ci/run share; it sources this file.

# The supported CPythons of this machine beside python3, one of each minor version, the newest last.
mapfile -t others < <(
  for python in ~/.pyenv/versions/*/bin/python3 /usr/{local/,}bin/python3.+([0-9]); do
    [ ! -x "$python" ] || "$python" -c 'import sys; print(*sys.version_info[:2], sys.executable)'
  done | awk -v tested="$(python3 -c 'import sys; print(sys.version_info[1])')" \
    '$1 == 3 && $2 >= 11 && $2 != tested && !seen[$2]++' | sort -n -k 2 | cut -d ' ' -f 3
)
newest=python3
if [ "${#others[@]}" -gt 0 ]; then
  newest=${others[-1]}
  unset "others[-1]"
fi

# Run what several steps need in the first of them: once NAME COMMAND ...
once() {
  (
    flock 9
    if [ ! -e "$work/$1.done" ]; then
      "${@:2}"
      touch "$work/$1.done"
    fi
  ) 9>"$work/$1.lock"
}

# Make an environment of what users and the named groups install: install FOLDER PYTHON GROUP ...
install() {
  local groups=("${@:3}")
  "$2" -m venv "$1"
  "$1/bin/pip" install -q "pip>=25.1"
  # First what users install: all at once, pip tries versions of botocore for a quarter of an hour.
  "$1/bin/pip" install -q -e ".[check,examples,icechunk,kerchunk,ml-dtypes,stores,test]"
  "$1/bin/pip" install -q -e . "${groups[@]/#/--group=}"
}
environment() {
  once environment install .venv python3 dev peers servers docs fuzz
}
newest_environment() {
  once newest install .venv.newest "$newest" dev peers servers ecosystem
}

# Install programs that some tests and steps need, where this machine allows it.
programs() {
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -q && apt-get install -y -q xfsprogs btrfs-progs bindfs gcc libc6-dev; } \
      >/dev/null || echo "apt-get failed: some file systems are skipped"
  fi
  npm install --silent --prefix "$work/zarrita" zarrita@0.7.5 @zarrita/storage@0.2.0 ||
    echo "npm failed: zarrita.js is not run, its golden arrays are read"
}

# Run all tests, or a sample of the long ones, but all code of the pages and all examples; fail if
# one of these is skipped for a reason that contains REASON, such as "" (recipes need packages that
# not every environment has): run_tests PYTHON {all|sample} REASON
run_tests() {
  local log=$work/${1//\//-} pages=tests/test_readme_and_examples.py
  once programs programs
  NUMCODECS_BYTES_TESTS=$2 ZARRITA_MODULES="$work/zarrita" \
    "$1" -m pytest -q --ignore=tests/ecosystem --ignore="$pages"
  NUMCODECS_BYTES_TESTS=all "$1" -m pytest -q "$pages" | tee "$log"
  no "SKIPPED.*test_readme_and_examples.*$3" "$log"
}

# Fail if a file contains a pattern: no PATTERN FILE
no() {
  if grep "$1" "$2"; then return 1; fi
}
