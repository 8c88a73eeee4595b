#!/usr/bin/env bash
# Builds wheel and source archive, checks them, installs each in an environment of its own and runs the quickstart there:
# release/archives.sh [FOLDER] (dist). PYTHON names the Python. Needs the package registry, and nothing else of this folder
# once the archives are built.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
folder=${1:-dist}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/tools"
"$work/tools/bin/python" -m pip install --quiet build twine
rm -rf "$folder"
"$work/tools/bin/python" -m build --outdir "$folder" .
"$work/tools/bin/twine" check --strict "$folder"/*
archives=$(cd "$folder" && pwd)

cd "$work"
tar -xzf "$archives"/sottovoce-*.tar.gz
for archive in "$archives"/*.whl "$archives"/*.tar.gz; do
    "$python" -m venv fresh
    fresh/bin/python -m pip install --quiet --no-compile --constraint sottovoce-*/constraints.txt "$archive[plots]"
    fresh/bin/python sottovoce-*/release/quickstart.py sottovoce-*/docs/quickstart.md
    rm -rf fresh
    echo "$(basename "$archive") runs with $("$python" --version)"
done
(cd "$archives" && sha256sum -- *)
