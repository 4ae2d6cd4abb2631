"""For the Python reference: docstrings as Markdown, their examples fenced and their stars escaped."""

import re

import griffe


def markdown(text):
    found, fenced, example = [], False, False
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        starts = line.lstrip().startswith(">>>")
        if not fenced and starts and not example:
            found += ["", "```pycon"]
            example = True
        elif example and not line.strip():
            found.append("```")
            example = False
        if not fenced and not example:
            parts = re.split(r"(``?[^`]*``?)", line)
            line = "".join(part if i % 2 else part.replace("*", r"\*") for i, part in enumerate(parts))
        found.append(line)
    return "\n".join(found + (["```"] if example else []))


class Doctests(griffe.Extension):
    def on_object(self, *, obj, **_):
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
