"""Find hard negatives and hard pairs, and mix triplets as ID-Sim trains on them.

  negatives  each anchor with the nearest images of other identities, in a model's space, within its split
  pairs      images with the same text and different identities, nearest in a model's space (VisME, 4.1)
  queries    each query with targets of other queries that a model ranks high, but not first (VisME, 4.2.1; B3)
  triplets   real, context-edit and identity-edit triplets in a ratio (ID-Sim, A.1, A.2 and Table 6)

examples:
  idmetric data mine negatives train.parquet -o mined.parquet --model timm:vit_large_patch16_dinov3.lvd1689m
  idmetric data mine pairs edits.parquet -o pairs.parquet --model visid_3b --ceiling 0.95
  idmetric data mine queries mmeb.parquet -o mined.parquet --model HugC/VisME-Qwen25VL-3B --skip 70
  idmetric data mine triplets mined.parquet --context context.parquet --identity edited.parquet --split train -o mix.csv

Embeddings are kept in the folder embeddings/ next to the output, and are computed again only for images that have
changed.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.cli import options
from idmetric.cli.command import status_of
from idmetric.cli.data.common import (
    add_input,
    add_on_error,
    add_output,
    check_output,
    leave_out_rows,
    refuse_leaks,
    save,
)
from idmetric.cli.options import natural, positive
from idmetric.metric.files import Progress

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray


def add_arguments(parser: ArgumentParser) -> None:
    """Add the modes of `idmetric data mine` and their options."""
    modes = parser.add_subparsers(dest="mode", metavar="MODE", required=True)
    negatives = _add_mode(modes, "negatives", "nearest images of other identities")
    pairs = _add_mode(modes, "pairs", "same text, different identity, nearest")
    queries = _add_mode(modes, "queries", "targets of other queries, from a window of the ranking")
    for mode in (negatives, pairs):
        mode.add_argument("--k", type=positive, default=1, metavar="N", help="neighbors of each image (default: 1)")
        mode.add_argument(
            "--ceiling",
            type=float,
            metavar="S",
            help="leave out images at least this similar (cosine): likely the same object",
        )
    negatives.add_argument("--seed", type=natural, default=0, help="seed of positives that the manifest does not name")
    add = queries.add_argument
    add("--k", type=positive, default=5, metavar="N", help="negatives of each query (default: 5)")
    add(
        "--skip",
        type=natural,
        default=30,
        metavar="N",
        help="pass over the first N, which may be right as well (default: 30)",
    )
    add("--depth", type=positive, default=100, metavar="N", help="draw from the next N (default: 100)")
    add("--seed", type=natural, default=0, help="seed of the draw")

    triplets = modes.add_parser("triplets", help="mixture of real, context-edit and identity-edit triplets")
    add = triplets.add_argument
    add("manifest", type=Path, help="mined triplets of real images (`mine negatives`)")
    add("--context", type=Path, help="originals and context-edits (default: the manifest)")
    add("--identity", type=Path, help="originals and identity-edits (default: the manifest)")
    add("--count", type=positive, default=10_000, help="number of triplets (default: 10000)")
    add("--ratio", default="1:1:1", help="real:context:identity (default: 1:1:1)")
    add("--split", help="take rows of this split; needed if there are several")
    add(
        "--originals",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="share of identity triplets with an original of another instance as negative, not an edit (default: 0.5)",
    )
    add("--seed", type=natural, default=0)

    for mode in (negatives, pairs, queries):
        add_on_error(mode)
    for mode in (negatives, pairs, queries, triplets):
        add_output(mode)


def _add_mode(modes: Any, name: str, line: str) -> ArgumentParser:
    """Add a mode that embeds the images of a manifest."""
    mode: ArgumentParser = modes.add_parser(name, help=line)
    add_input(mode)
    mode.add_argument("--model", required=True, help=options.MODELS)
    options.add_shared(mode, "--device", "--batch-size")
    return mode


def run(args: Namespace) -> int:
    """Run the mode; returns the exit status."""
    check_output(args.out)
    return _triplets(args) if args.mode == "triplets" else _mine(args)


def _to_embed(args: Namespace, table: pd.DataFrame) -> tuple[NDArray[np.int64], dict[int, str]]:
    """The rows to embed, and the texts that models of images and texts see."""
    import numpy as np

    from idmetric.data.curate import mine
    from idmetric.data.split import blocks

    words = {}
    if args.mode == "queries":
        pools = [mine.query_rows(table)]
        needs = "rows of slot query and positive"
        words = table["text"].loc[pools[0]].dropna().to_dict()
    else:
        refuse_leaks(table)
        pools = [*mine.negative_rows(table)]
        needs = "real images of known identity"
        if args.mode == "pairs":
            pools = mine.text_pools(table, blocks(table, groups=False))
            needs = "two identities with the same text"
    rows = np.unique(np.concatenate([np.array([], dtype=np.int64), *pools]))
    if not len(rows):
        raise ValueError(f"{args.manifest}: nothing to mine: it has no {needs}")
    return rows, words


def _mine(args: Namespace) -> int:
    from idmetric.data.curate import mine
    from idmetric.data.embed import embed_rows
    from idmetric.data.manifest import read
    from idmetric.metric.load import load

    table = read(args.manifest)
    rows, words = _to_embed(args, table)
    model = load(args.model, **options.load_options(args))
    store = args.out.parent / "embeddings"
    with Progress("images", not args.quiet, verb="embedded") as progress:
        vectors, problems = embed_rows(
            table, model, rows, store=store, words=words, batch_size=args.batch_size, progress=progress
        )
    if problems:
        leave_out_rows(table, problems, args.on_error)
    if len(problems) == len(rows):
        raise ValueError("no image could be read")

    if args.mode == "negatives":
        mined = mine.hard_negatives(table, vectors, args.k, ceiling=args.ceiling, seed=args.seed)
    elif args.mode == "pairs":
        mined = mine.hard_pairs(table, vectors, args.k, ceiling=args.ceiling)
    else:
        mined = mine.query_negatives(table, vectors, args.k, skip=args.skip, depth=args.depth, seed=args.seed)
    similarities = mined["x_similarity"].dropna()
    if not len(similarities):
        why = "every other identity is missing, in another split, or above --ceiling"
        if args.mode == "queries":
            why = f"no data set has more than {args.skip} different targets: lower --skip"
        raise ValueError(f"no {args.mode} found: {why}")
    low, middle, high = similarities.quantile([0, 0.5, 1])
    kind = "pairs" if args.mode == "pairs" else "negatives"
    print(f"{len(similarities)} {kind}; similarity {low:.3f} to {high:.3f}, median {middle:.3f}")
    save(mined, args.out)
    return status_of(problems)


def _triplets(args: Namespace) -> int:
    from idmetric.data.curate.triplets import MIXTURES, mixture, parse_ratio
    from idmetric.data.manifest import read

    real = read(args.manifest)
    context = real if args.context is None else read(args.context)
    identity = real if args.identity is None else read(args.identity)
    triplets = mixture(
        real,
        context,
        identity,
        count=args.count,
        ratio=parse_ratio(args.ratio),
        seed=args.seed,
        split=args.split,
        originals=args.originals,
    )
    kinds = triplets["x_mixture"].tolist()
    print(", ".join(f"{kinds.count(name) // 3} {name}" for name in MIXTURES) + " triplets")
    save(triplets, args.out)
    return 0
