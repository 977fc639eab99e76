#!/bin/sh
# Finds a Python that has pytest, and runs run_pytest.py with it.
#
#   run_pytest.sh IN
#
# stdin is one line, the word that run_pytest.py marks its lines with. A local box names a Python that surely has pytest
# in ROLLOUTS_PYTHON; the plugins installed there are not the task's, so they stay out.
set -u
in=$1 missing=97
IFS= read -r word
ROLLOUTS_PYTHONPATH=${PYTHONPATH-}
export ROLLOUTS_PYTHONPATH
unset PYTHONPATH PYTHONSTARTUP PYTHONHOME
code=$missing
for python in "${ROLLOUTS_PYTHON-}" python3 python; do
    command -v "$python" >/dev/null 2>&1 || continue
    if [ "$python" = "${ROLLOUTS_PYTHON-}" ]; then export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1; fi
    printf '%s\n' "$word" | "$python" "$in/run_pytest.py" "$in/pytest.json"
    code=$?
    [ "$code" = "$missing" ] || break
    unset PYTEST_DISABLE_PLUGIN_AUTOLOAD
done
exit "$code"
