"""The forms that results can be shown in. What draws or words a result registers here, so that no result imports it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal, TypeVar

from wellcond.errors import OutputError

Form = Literal["text", "figure", "page", "fragment", "sarif"]
"""Plain text, a matplotlib figure, an HTML file that opens offline, HTML for a notebook, findings as SARIF."""
Renderer = TypeVar("Renderer", bound=Callable[..., Any])

renderers_module = ""
"""Module that registers all renderers when it is imported; imported when a result is first shown."""
_RENDERERS: dict[tuple[Form, type], Callable[..., Any]] = {}


def renders(form: Form, kind: type) -> Callable[[Renderer], Renderer]:
    """Register a function that takes a result of this type, or of one derived from it, and returns it in this form.

    Example:
        >>> class Answer: ...
        >>> @renders("text", Answer)
        ... def answer_text(answer):
        ...     return "42"
        >>> rendered("text", Answer()), is_rendered("page", Answer)
        ('42', False)
    """

    def register(renderer: Renderer) -> Renderer:
        _RENDERERS[form, kind] = renderer
        return renderer

    return register


def is_rendered(form: Form, kind: type) -> bool:
    """Whether results of this type have this form."""
    return _renderer(form, kind) is not None


def rendered(form: Form, result: object, **options: Any) -> Any:
    """A result in this form.

    Args:
        form: Form to show it in.
        result: Result to show.
        **options: Passed on to the registered function.

    Raises:
        OutputError: Results of this type do not have this form.
    """
    renderer = _renderer(form, type(result))
    if renderer is None:
        raise OutputError(f"a {type(result).__name__} has no {form}; save it as .csv or .json.")
    return renderer(result, **options)


def _renderer(form: Form, kind: type) -> Callable[..., Any] | None:
    if renderers_module:
        import_module(renderers_module)
    return next((_RENDERERS[form, base] for base in kind.__mro__ if (form, base) in _RENDERERS), None)
