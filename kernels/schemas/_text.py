"""Reading schema tables: one schema per paragraph, wrapped as the page needs it."""

from __future__ import annotations


def schemas(text: str) -> dict[str, str]:
    """Split a page of schemas into ``{name with overload: schema on one line}``.

    Paragraphs are separated by an empty line; inside one, line breaks mean a space.
    """
    table: dict[str, str] = {}
    for paragraph in text.strip().split("\n\n"):
        schema = " ".join(paragraph.split())
        table[schema[: schema.index("(")]] = schema
    return table
