"""The C reference: pages in Markdown made of include/sparse_autotune.h, whose comments are the manual.

A section of the header is a heading, a comment and the declarations below it are an entry, and names of the
header are links wherever a comment has them."""

import re

SECTION = re.compile(r"/\* -{4} (.+?) -+ \*/")
NAME = re.compile(r"\b(?:sat_[a-z0-9_]*[a-z0-9]|SAT_[A-Z0-9_]*[A-Z0-9])\b")
EMPHASIS = re.compile(r"(?<![\w)*\]])\*([a-z]+)\*(?![\w(*])")


class Entry:
    """A comment, and the declarations that stand right below it."""

    def __init__(self, comment=None):
        self.comment, self.code = comment, []

    @property
    def names(self):
        """What is declared here, in order; of a type that is first named and then defined, once."""
        found = []
        for text in self.code:
            bare = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
            if bare.startswith("#define"):
                name = bare.split()[1].split("(")[0]
            elif bare.startswith("typedef"):
                pointer = re.search(r"\(\*(sat_\w+)\)", bare)
                name = pointer.group(1) if pointer else re.search(r"(sat_\w+);\s*$", bare.strip()).group(1)
            elif bare.startswith("struct"):
                name = bare.split()[1]
            elif bare.startswith("enum {"):
                name = re.search(r"SAT_\w+", bare).group(0)
            else:
                name = re.search(r"(sat_\w+)\(", bare).group(1)
            if name not in found:
                found.append(name)
        return found

    @property
    def constants(self):
        """The names of the enumerators here."""
        bare = re.sub(r"/\*.*?\*/", "", "\n".join(self.code), flags=re.S)
        return [
            name
            for body in re.findall(r"enum \w*\s*\{(.*?)\}", bare, re.S)
            for name in re.findall(r"SAT_\w+", body)
        ]


def words_of(lines):
    """A comment without its stars, as lines."""
    text = "\n".join(lines).strip()
    text = re.sub(r"^/\*+|\*/$", "", text)
    return [re.sub(r"^ ?\* ?", "", line).rstrip() for line in text.split("\n")]


def parse(text):
    """The header's first comment, and [(section, [entries])]."""
    lines, sections, at = text.split("\n"), [], 0
    end = next(i for i, line in enumerate(lines) if line.strip() == "*/")
    intro = words_of(lines[: end + 1])
    at = next(i for i, line in enumerate(lines) if SECTION.match(line))
    open_entry = None
    while at < len(lines):
        line = lines[at]
        found = SECTION.match(line)
        if found:
            sections.append((found.group(1), []))
            open_entry, at = None, at + 1
        elif not line.strip():
            open_entry, at = None, at + 1
        elif line.startswith("/*"):
            start = at
            while "*/" not in lines[at]:
                at += 1
            at += 1
            open_entry = Entry(words_of(lines[start:at]))
            sections[-1][1].append(open_entry)
        elif line.startswith("#") and not line.startswith("#define"):
            at += 1
            if line.startswith("#ifdef __cplusplus"):
                break
        else:
            start, depth = at, 0
            while True:
                bare = re.sub(r"/\*.*?(\*/|$)", "", lines[at])
                depth += bare.count("{") + bare.count("(") - bare.count("}") - bare.count(")")
                at += 1
                # A comment behind the end may go on below it, indented.
                if depth == 0 and (bare.rstrip().endswith(";") or line.startswith("#define")):
                    while at < len(lines) and unfinished("\n".join(lines[start:at])):
                        at += 1
                    break
            if open_entry is None:
                open_entry = Entry()
                sections[-1][1].append(open_entry)
            open_entry.code.append("\n".join(lines[start:at]))
    return intro, [(name, [e for e in entries if e.code or e.comment]) for name, entries in sections]


def unfinished(text):
    return text.count("/*") > text.count("*/")


def linked(text, places):
    """Prose with the header's names as links; stars and angles that are not Markdown's stay what they are."""
    text = EMPHASIS.sub(r"<em>\1</em>", text.replace("<", "&lt;")).replace("*", r"\*")
    text = re.sub(r"(?<!`)(\$[A-Z][A-Z_]+)", r"`\1`", text)

    def link(found):
        name = found.group(0)
        return f"[`{name}`](#{places[name]})" if name in places else f"`{name}`" if "_" in name[4:] else name

    # what is between backticks already stays as it is
    return "".join(
        part if i % 2 else NAME.sub(link, part) for i, part in enumerate(re.split(r"(`[^`]*`)", text))
    )


def prose(lines, places):
    """Paragraphs; lines in columns become a table of two columns; where there are more they stay."""
    found, block = [], []

    def columns(line):
        return bool(re.search(r"\S {2,}\S", line.rstrip())) or line.startswith("   ")

    def flush():
        if not block:
            return
        if not columns(block[0]):
            found.append(linked(" ".join(line.strip() for line in block), places))
        else:
            rows = []
            for line in block:
                two = re.match(r"^ {0,3}(\S+(?: \S+)*) {2,}(\S+(?: \S+)*)$", line)
                if two:
                    rows.append([two.group(1), two.group(2)])
                elif rows and re.match(r"^ {6,}\S+(?: \S+)*$", line):
                    rows[-1][1] += " " + line.strip()
                else:
                    rows = None
                    break
            if rows:
                found.append(
                    "\n".join(
                        ["| | |", "|---|---|"]
                        + [f"| {linked(a, places)} | {linked(b, places)} |" for a, b in rows]
                    )
                )
            else:
                indent = min(len(line) - len(line.lstrip()) for line in block)
                language = "c" if any(line.rstrip().endswith(";") for line in block) else "text"
                found.append("\n".join([f"```{language}", *(line[indent:] for line in block), "```"]))
        block.clear()

    for line in lines:
        if not line.strip():
            flush()
            continue
        if block and columns(line) != columns(block[0]):
            flush()
        block.append(line)
    flush()
    return "\n\n".join(found)


def page(text):
    """The page, as Markdown."""
    intro, sections = parse(text)
    places = {}
    for _, entries in sections:
        for entry in entries:
            for name in entry.names:
                places.setdefault(name, name)
            for name in entry.constants:
                places.setdefault(name, entry.names[0])
    found = [
        "# The C reference",
        "Made of the comments of `sparse_autotune.h`. [The page on C](../guide/c.md) shows how to begin.",
        prose(intro, places),
    ]
    seen = set()
    for name, entries in sections:
        found.append(f"## {name}")
        for entry in entries:
            if entry.code:
                fresh = [n for n in entry.names if n not in seen] or entry.names
                anchors = "".join(f'<a id="{n}"></a>' for n in fresh[1:] if n not in seen)
                first = f" {{ #{fresh[0]} }}" if fresh[0] not in seen else ""
                seen.update(fresh)
                more = ", ..." if entry.code[0].startswith("enum {") else ""
                found.append(f"### {', '.join(fresh)}{more}{first}")
                if anchors:
                    found.append(anchors)
            if entry.comment:
                found.append(prose(entry.comment, places))
            if entry.code:
                code = "\n".join(re.sub(r"^SAT_API ", "", c, flags=re.M) for c in entry.code)
                found.append(f"```c\n{code}\n```")
    return "\n\n".join(found) + "\n"


def declared(text):
    """Every function of the header, by its declarations."""
    return set(re.findall(r"^SAT_API [^;(]*?(sat_\w+)\(", text, re.M))
