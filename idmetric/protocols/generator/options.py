"""Options that protocols of generated images share."""

from __future__ import annotations

import argparse


def add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    """--references, --training, --held-out, --clip-t and --no-copies."""
    text = "a folder with a folder for each subject, or a path such as 'refs/{subject}/*.jpg'"
    parser.add_argument("--references", metavar="PATH", help=text)
    text = "images that the generators were trained on, given as --references are"
    parser.add_argument("--training", metavar="PATH", help=text)
    text = "state that no reference was among the training images"
    parser.add_argument("--held-out", action="store_true", help=text)
    text = "CLIP or SigLIP for prompt fidelity: folder or Hub repository (pip install 'idmetric[visid]')"
    parser.add_argument("--clip-t", metavar="REPO", help=text)
    parser.add_argument("--no-copies", action="store_true", help="do not look for copies of references")
