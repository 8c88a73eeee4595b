"""The size and the shape of the code, as numbers: `python benchmarks/house.py`.

It prints what tests/test_house.py limits: lines, names that stand in several modules, and how many functions and files
a run passes through. `--names` lists the repeated names, `--walk central` the functions of the walks of that name.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import house


def print_counts(*, names: bool) -> None:
    lines = house.lines()
    print(f"lines of src: {sum(lines.values()):,}")
    for package, count in sorted(lines.items(), key=lambda item: -item[1]):
        print(f"    {count:6,}  {'modules beside the packages' if package == '.' else package}")
    long = house.long_files()
    print(f"files above {house.LONG} lines: {len(long)}")
    for path, count in sorted(long.items(), key=lambda item: -item[1]):
        print(f"    {count:6,}  {path}")
    for what, repeated in (("classes", house.repeated_classes()), ("functions", house.repeated_functions())):
        print(f"names of top-level {what} that stand in several modules: {len(repeated)}")
        for name, paths in sorted(repeated.items()) if names else ():
            print(f"    {name}: {', '.join(paths)}")
    print(f"noqa: ARG: {house.unused_arguments()}")
    print(f"splits and channels compared by value: {house.compared_by_value()}")
    print("parameters of estimators:", ", ".join(f"{k} {v}" for k, v in house.constructor_parameters().items()))
    longest, path = house.longest_coordinate()
    print(f"longest coordinate: {longest} lines, in {path}")
    print(f"words of docs: {house.words_of_docs():,}")


def print_walks(listed: str | None) -> None:
    print(f"\n{'walk':32} functions  without comprehensions and lambdas  files")
    for name, walk in house.WALKS.items():
        passed = walk()
        print(f"{name:32} {passed.functions:9,}  {passed.named:34,}  {passed.files:5,}")
        print("    " + ", ".join(f"{package} {count}" for package, count in passed.by_package().items()))
        for path, function in sorted(passed.passed) if listed and listed in name else ():
            print(f"    {path} {function}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--names", action="store_true", help="list the names that stand in several modules")
    parser.add_argument("--walk", help="list the functions of the walks whose names have this text in them")
    arguments = parser.parse_args()
    print_counts(names=arguments.names)
    print_walks(arguments.walk)


if __name__ == "__main__":
    main()
