"""Pages and files from the folder `templates`: whatever is put into a template is escaped as its format needs it.

In HTML and Markdown a value is no markup and acts on nothing; in TOML it is a value of TOML. Only what is marked safe
stands as it is (`Markup`, `| safe`): styles, scripts and pictures of this program, and names that were checked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import markupsafe
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from sottovoce.app.texts import harmless, markdown
from sottovoce.files import toml_key, toml_value

_FOLDER: Final = Path(__file__).parent / "templates"
_ESCAPES: Final[Mapping[str, Callable[[Any], str]]] = {
    ".html": lambda value: markupsafe.escape(harmless(str(value))),
    ".md": lambda value: markdown(str(value)),
    ".toml": toml_value,
}


def render(name: str, /, **values: Any) -> str:
    """The text of a template; a value that it needs and does not get is an error."""
    return _environment(Path(name).suffix).get_template(name).render(values)


@functools.cache
def read(name: str) -> Markup:
    """A style or a script, as it stands in the folder."""
    return Markup((_FOLDER / name).read_text(encoding="utf-8"))  # noqa: S704  # a file of this program


@functools.cache
def _environment(suffix: str) -> Environment:
    escape = _ESCAPES[suffix]
    made = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else Markup(escape(value)),  # noqa: S704  # it escapes
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    made.filters.update(number=format, key=lambda name: Markup(toml_key(name)))  # noqa: S704  # it escapes
    made.globals["style"] = read("style.css")
    return made
