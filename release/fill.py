"""Write into every file what stands in one place: the version of pyproject.toml, and what release/about.toml says.

python release/fill.py             writes the files
python release/fill.py --check     names the files that differ from what would be written, and fails if there are any
python release/fill.py --missing   names what nobody has filled in yet, and fails if there is anything
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ABOUT = ROOT / "release" / "about.toml"
NOBODY = "The sottovoce developers"
TO_FILL = "to-fill@example.invalid"  # a name that no network has (RFC 2606)
BEGIN, END = ">>> release/about.toml", "<<< release/about.toml"


def about() -> dict[str, Any]:
    return tomllib.loads(ABOUT.read_text(encoding="utf-8"))


def version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def missing(facts: Mapping[str, Any]) -> list[str]:
    """What is empty, by its key in about.toml; an ORCID is nobody's duty."""
    empty = [key for key, value in facts.items() if value == ""]
    for number, author in enumerate(facts["authors"], 1):
        empty += [f"authors {number}: {key}" for key, value in author.items() if value == "" and key != "orcid"]
    return empty


def authors(facts: Mapping[str, Any]) -> list[Mapping[str, str]]:
    return [author for author in facts["authors"] if author["name"]]


def between(text: str, block: str) -> str:
    """The text with another block between its marks, which stand on lines of their own."""
    marks = rf"(^[^\n]*{BEGIN}[^\n]*\n).*?(^[^\n]*{END}[^\n]*$)"
    new, count = re.subn(marks, lambda found: found[1] + block + found[2], text, flags=re.MULTILINE | re.DOTALL)
    if count != 1:
        raise ValueError(f"{count} blocks between {BEGIN!r} and {END!r}; there must be one")
    return new


def replaced(text: str, pattern: str, line: str) -> str:
    new, count = re.subn(pattern, lambda _: line, text, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"{count} lines match {pattern!r}; there must be one")
    return new


def lines(*each: str) -> str:
    return "".join(f"{line}\n" for line in each if line)


def of_project(text: str, facts: Mapping[str, Any]) -> str:
    people = [{"name": each["name"], **({"email": each["mail"]} if each["mail"] else {})} for each in authors(facts)]
    tables = (", ".join(f"{key} = {json.dumps(value)}" for key, value in each.items()) for each in people)
    listed = ", ".join(f"{{ {table} }}" for table in tables) or f'{{ name = "{NOBODY}" }}'
    site, pages = facts["repository"], facts["documentation"]
    urls = {"Documentation": pages}
    if site:
        urls |= {"Repository": site, "Issues": f"{site}/issues", "Changelog": f"{site}/blob/main/CHANGELOG.md"}
    each = (f"urls.{key} = {json.dumps(value)}" for key, value in urls.items() if value)
    return between(text, lines(f"authors = [{listed}]", *each))


def of_module(text: str, facts: Mapping[str, Any]) -> str:
    del facts
    return replaced(text, r"^__version__ = .*$", f'__version__ = "{version()}"')


def of_citation(text: str, facts: Mapping[str, Any]) -> str:
    people = []
    for each in authors(facts):
        people.append(f"  - name: {json.dumps(each['name'])}")
        people += [f"    email: {each['mail']}"] if each["mail"] else []
        people += [f"    orcid: https://orcid.org/{each['orcid']}"] if each["orcid"] else []
        people += [f"    affiliation: {json.dumps(each['affiliation'])}"] if each["affiliation"] else []
    site = f"repository-code: {facts['repository']}" if facts["repository"] else ""
    text = between(text, lines("authors:", *(people or [f"  - name: {NOBODY}"]), site))
    return replaced(text, r"^version: .*$", f"version: {version()}")


def of_r(text: str, facts: Mapping[str, Any]) -> str:
    people = [
        f'person({json.dumps(each["name"])}, role = c("aut"{"" if number else ", " + chr(34) + "cre" + chr(34)}), '
        f'email = "{each["mail"] or TO_FILL}")'
        for number, each in enumerate(authors(facts))
    ] or [f'person("{NOBODY}", role = c("aut", "cre"), email = "{TO_FILL}")']
    field = people[0] if len(people) == 1 else "c(" + ",\n    ".join(people) + ")"
    text = re.sub(r"^(URL|BugReports): .*\n", "", text, flags=re.MULTILINE)
    if site := facts["repository"]:
        text = text.replace("License:", f"URL: {site}\nBugReports: {site}/issues\nLicense:")
    text = replaced(text, r"^Authors@R: .*\n(?:[ \t].*\n)*", f"Authors@R: {field}\n")
    return replaced(text, r"^Version: .*$", f"Version: {version()}")


def of_recipe(text: str, facts: Mapping[str, Any]) -> str:
    keepers = [name.strip() for name in facts["feedstock"].split(",") if name.strip()]
    site = [f"  repository: {facts['repository']}"] if facts["repository"] else []
    pages = [f"  documentation: {facts['documentation']}"] if facts["documentation"] else []
    block = lines(
        *site, *pages, "", "extra:", "  recipe-maintainers:", *(f"    - {name}" for name in keepers or ["to-fill"])
    )
    return replaced(between(text, block), r'^  version: ".*$', f'  version: "{version()}"')


def of_paper(text: str, facts: Mapping[str, Any]) -> str:
    people, places = authors(facts), list(dict.fromkeys(each["affiliation"] for each in authors(facts)))
    block = ["authors:"]
    for each in people:
        block += [f"  - name: {json.dumps(each['name'])}", f"    affiliation: {places.index(each['affiliation']) + 1}"]
        block += [f"    orcid: {each['orcid']}"] if each["orcid"] else []
    block += [] if people else [f"  - name: {NOBODY}", "    affiliation: 1"]
    block += ["affiliations:"]
    for number, place in enumerate(places or ["to-fill"], 1):
        block += [f"  - name: {json.dumps(place)}", f"    index: {number}"]
    text = between(text, lines(*block))
    text = replaced(text, r"(?<=^# AI usage disclosure\n\n).*(?=\n)", facts["generative_ai"] or "to-fill")
    return replaced(text, r"(?<=^# Acknowledgements\n\n).*(?=\n)", facts["funding"] or "to-fill")


def contact(key: str, otherwise: str) -> Callable[[str, Mapping[str, Any]], str]:
    def write(text: str, facts: Mapping[str, Any]) -> str:
        return between(text, lines(f"Write to {facts[key]}." if facts[key] else otherwise))

    return write


FILES: dict[str, Callable[[str, Mapping[str, Any]], str]] = {
    "pyproject.toml": of_project,
    "src/sottovoce/__init__.py": of_module,
    "CITATION.cff": of_citation,
    "r/DESCRIPTION": of_r,
    "recipe/recipe.yaml": of_recipe,
    "paper/paper.md": of_paper,
    "SECURITY.md": contact("security_mail", "No address is known yet."),
    "CODE_OF_CONDUCT.md": contact("conduct_mail", "No address is known yet."),
}


def differing(facts: Mapping[str, Any]) -> dict[str, str]:
    """The new texts of files that say something else."""
    found = {}
    for name, write in FILES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        if (new := write(text, facts)) != text:
            found[name] = new
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--missing", action="store_true")
    options = parser.parse_args()
    facts = about()
    if options.missing:
        print("\n".join(missing(facts)) or "nothing is missing")
        return bool(missing(facts))
    found = differing(facts)
    for name, text in found.items():
        print(f"{name} differs" if options.check else f"{name} written")
        if not options.check:
            (ROOT / name).write_text(text, encoding="utf-8")
    return options.check and bool(found)


if __name__ == "__main__":
    sys.exit(main())
