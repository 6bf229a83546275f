"""The command line reference: every parser of `idmetric.cli` as Markdown, a page for each command.

    python docs/scripts/cli_reference.py FOLDER      writes FOLDER/NAME.md for each command

make_pages.py runs it before each build, so a page cannot be older than its parser. No parser needs torch or an extra.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
Named = tuple[str, argparse.ArgumentParser]  # the words that call it, and it


# The parsers


def commands() -> dict[str, list[Named]]:
    """Page -> the parsers on it, for each subcommand of `idmetric`."""
    from idmetric.cli.main import COMMANDS

    pages = {}
    for name, (place, _) in COMMANDS.items():
        module, prog = importlib.import_module(place), f"idmetric {name}"
        parser = module.build_parser(prog=prog)
        chosen = {"train": "RECIPES", "eval": "PROTOCOLS"}.get(name)  # these make one subcommand's options at a time
        if chosen is None:
            pages[f"idmetric-{name}"] = tree(parser)
        else:
            pages[f"idmetric-{name}"] = [(prog, parser)] + [
                named
                for part in getattr(module, chosen)
                for named in tree(children(module.build_parser(part, prog))[part])
            ]
    return pages


def children(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """A parser's sub-commands."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= action.choices
    return found


def tree(parser: argparse.ArgumentParser) -> list[Named]:
    """A parser and all below it."""
    below = [named for child in children(parser).values() for named in tree(child)]
    return [(parser.prog, parser), *below]


# Markdown


def page(program: str, parsers: Sequence[Named]) -> str:
    """The page of a command."""
    parts = [f"# {program}\n", "Made from the parser: `--help` says the same.\n"]
    seen: dict[str, str] = {}
    for name, parser in parsers:
        parts.extend(section(name, parser, program, seen))
    return "\n".join(parts)


def section(name: str, parser: argparse.ArgumentParser, program: str, seen: dict[str, str]) -> Iterator[str]:
    """Heading, description, usage, tables of options, examples; what another section has is linked (`seen`)."""
    if name != program:
        yield f"## {name}\n"
    if parser.description:
        yield prose(parser.description)
    yield f"```text\n{usage(parser)}\n```\n"
    again: dict[str, list[str]] = {}
    for group in parser._action_groups:
        actions = [a for a in group._group_actions if a.help is not argparse.SUPPRESS and a.dest != "help"]
        text = "\n".join(table(group.title or "options", actions, parser)) if actions else ""
        if text in seen:
            again.setdefault(seen[text], []).append(group.title or "options")
        elif text:
            yield text
            seen[text] = name
    for other, titles in again.items():
        yield f"Also {' and '.join(f'*{title}*' for title in titles)}, as in [{other}](#{other.replace(' ', '-')}).\n"
    if parser.epilog and parser.epilog not in seen:
        yield prose(parser.epilog)
        seen[parser.epilog] = name


def usage(parser: argparse.ArgumentParser) -> str:
    """What --help prints of it, for a page's width."""
    from idmetric.cli.command import Help

    parser.formatter_class = lambda prog: Help(prog, width=88, max_help_position=24)
    return parser.format_usage().strip()


def table(title: str, actions: Sequence[argparse.Action], parser: argparse.ArgumentParser) -> Iterator[str]:
    """A table of options."""
    if any(isinstance(action, argparse._SubParsersAction) for action in actions):
        title = "commands"
    own = title.split()[0] in parser.prog.split()  # a protocol's or recipe's name
    yield f"**{title if own else title[0].upper() + title[1:]}**\n"
    yield "| option | meaning |\n|---|---|"
    for action in actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                yield f"| `{choice.dest}` | {cell(choice.help or '')} |"
            continue
        yield f"| {head(action)} | {cell(meaning(action, parser))} |"
    yield ""


def head(action: argparse.Action) -> str:
    """`--option VALUE`."""
    value = argument(action)
    if not action.option_strings:
        return f"`{value or action.dest}`"
    names = [s for s in action.option_strings if not s.startswith("--no-") or len(action.option_strings) == 1]
    if isinstance(action, argparse.BooleanOptionalAction):
        return f"`{names[0]}`, `--no-{names[0][2:]}`"
    return ", ".join(f"`{n} {value}`" if value else f"`{n}`" for n in action.option_strings)


def argument(action: argparse.Action) -> str:
    """An option's value as argparse writes it."""
    if action.nargs == 0:
        return ""
    plain = argparse.HelpFormatter("")
    default = action.dest.upper() if action.option_strings else action.dest
    return plain._format_args(action, default).replace("|", "/") if action.choices is None else choices(action)


def choices(action: argparse.Action) -> str:
    """The values to choose from."""
    return str(action.metavar) if action.metavar else "{" + ",".join(map(str, action.choices or ())) + "}"


def meaning(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """The help text with its values filled in."""
    return argparse.HelpFormatter(parser.prog)._expand_help(action) if action.help else ""


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return marked(" ".join(text.split())).replace("|", "\\|")


def marked(text: str) -> str:
    """Plain help text as Markdown: options as code, pages as links, and nothing taken for markup."""
    parts = re.split(r"(`[^`]*`)", text)
    for i in range(0, len(parts), 2):
        safe = re.sub(r"([\\*\[\]])", r"\\\1", parts[i]).replace("<", "&lt;")
        parts[i] = re.sub(r"(?<![\w\-/])(--[a-z][a-z\-]*)", r"`\1`", safe)
        parts[i] = re.sub(r"\bdocs/([\w/-]+\.md)", r"[\1](../../\1)", parts[i])
    return "".join(parts)


def prose(text: str) -> str:
    """A docstring as Markdown: paragraphs, lists, and indented lines as code."""
    blocks: list[tuple[bool, list[str]]] = []
    for line in joined_items(text.strip("\n").splitlines()):
        code = line.startswith("  ") or (not line.strip() and bool(blocks) and blocks[-1][0])
        if not blocks or blocks[-1][0] != code:
            blocks.append((code, []))
        blocks[-1][1].append(line)
    return "\n".join(fenced(lines) if code else plain(lines) for code, lines in blocks) + "\n"


def joined_items(lines: Sequence[str]) -> list[str]:
    """Each item of a list on one line, with an empty line before and after the list."""
    found: list[str] = []
    for line in lines:
        inside = bool(found) and found[-1].startswith("- ")
        if re.match(r"[*-] ", line):
            found += ([] if inside or not found else [""]) + [f"- {line[2:]}"]
        elif inside and line.startswith("  "):
            found[-1] += f" {line.strip()}"
        else:
            found += ["", line] if inside and line.strip() else [line]
    return found


def fenced(lines: Sequence[str]) -> str:
    """Lines as a code block."""
    text = "\n".join(lines).rstrip()
    margin = min((len(line) - len(line.lstrip()) for line in text.splitlines() if line.strip()), default=0)
    return "```text\n" + "\n".join(line[margin:] for line in text.splitlines()) + "\n```\n"


def plain(lines: Sequence[str]) -> str:
    """Lines as paragraphs; a short heading such as `examples:` stays one."""
    return "\n\n".join(marked(part) for part in "\n".join(lines).strip().split("\n\n")) + "\n"


def main(folder: Path) -> None:
    """Write the pages into a folder, and remove those of commands that are gone."""
    sys.path.insert(0, str(ROOT))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, parsers in commands().items():
        text = page(program=parsers[0][0], parsers=parsers)
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
