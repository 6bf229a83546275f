"""Find hard negatives and hard pairs, and mix triplets as ID-Sim trains on them.

  negatives  each anchor with the nearest images of other identities, in a model's space, within its split
  pairs      images with the same text and different identities, nearest in a model's space (VisME, 4.1)
  queries    each query with targets of other queries that a model ranks high, but not first (VisME, 4.2.1; B3)
  triplets   real, context-edit and identity-edit triplets in a ratio (ID-Sim, A.1, A.2 and Table 6)

examples:
  idmetric data mine negatives train.parquet -o mined.parquet --model timm:vit_large_patch16_dinov3.lvd1689m
  idmetric data mine pairs edits.parquet -o pairs.parquet --model visid_3b --ceiling 0.95 --limit 20000
  idmetric data mine queries mmeb.parquet -o mined.parquet --model HugC/VisME-Qwen25VL-3B --skip 70
  idmetric data mine triplets mined.parquet --context context.parquet --identity edited.parquet --split train -o mix.csv

Embeddings are kept in a folder next to the output, and are computed again only for images that have changed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.cli import options
from idmetric.cli.command import say
from idmetric.cli.data.common import add_input, add_on_error, add_output, check_output, refuse_leaks, save, take_out
from idmetric.cli.options import natural, positive
from idmetric.io.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from idmetric.data.curate.mine import Mined
    from idmetric.data.manifest.table import Manifest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the modes of `idmetric data mine` and their options."""
    modes = parser.add_subparsers(dest="mode", metavar="MODE", required=True)
    negatives = modes.add_parser("negatives", help="nearest images of other identities")
    add_input(negatives)
    _add_model(negatives, required=True)
    _add_search(negatives)
    negatives.add_argument("--roles", type=lambda text: tuple(text.split(",")), default=("real",), metavar="ROLE,...",
                           help="roles of images that may be negatives (default: real)")  # fmt: skip
    negatives.add_argument("--relatives", action="store_true",
                           help="also take identities made from the anchor's, such as its identity-edits")  # fmt: skip
    negatives.add_argument("--seed", type=natural, default=0, help="seed of positives that the manifest does not name")
    pairs = modes.add_parser("pairs", help="same text, different identity, nearest")
    add_input(pairs)
    _add_model(pairs, required=True)
    _add_search(pairs)
    pairs.add_argument("--limit", type=positive, metavar="N", help="keep the N closest pairs")
    queries = modes.add_parser("queries", help="targets of other queries, from a window of the ranking")
    add_input(queries)
    _add_model(queries, required=True)
    queries.add_argument("--k", type=positive, default=5, metavar="N", help="negatives of each query (default: 5)")
    queries.add_argument("--skip", type=natural, default=30, metavar="N",
                         help="pass over the first N, which may be right as well (default: 30)")  # fmt: skip
    queries.add_argument("--depth", type=positive, default=100, metavar="N",
                         help="draw from the next N (default: 100)")  # fmt: skip
    queries.add_argument("--seed", type=natural, default=0, help="seed of the draw")
    triplets = modes.add_parser("triplets", help="mixture of real, context-edit and identity-edit triplets")
    triplets.add_argument("manifest", type=Path, help="mined triplets of real images (`mine negatives`)")
    triplets.add_argument("--context", type=Path, help="originals and context-edits (default: the manifest)")
    triplets.add_argument("--identity", type=Path, help="originals and identity-edits (default: the manifest)")
    triplets.add_argument("--count", type=positive, default=10_000, help="number of triplets (default: 10000)")
    triplets.add_argument("--ratio", default="1:1:1", help="real:context:identity, or even, real, context, identity "
                          "(the named kind 0.7, each other 0.15), no-identity, real-only (default: 1:1:1)")  # fmt: skip
    triplets.add_argument("--split", help="take rows of this split; needed if there are several")
    triplets.add_argument("--per-identity", type=positive, default=1, metavar="N",
                          help="at most N triplets of an instance in each of the three (default: 1)")  # fmt: skip
    triplets.add_argument("--originals", type=float, default=0.5, metavar="SHARE",
                          help="share of identity triplets with an original of another instance as negative, not an "
                          "edit (default: 0.5)")  # fmt: skip
    triplets.add_argument("--seed", type=natural, default=0)
    _add_model(triplets, required=False)
    for mode in (negatives, pairs, queries, triplets):
        add_on_error(mode)
        add_output(mode)


def _add_model(parser: argparse.ArgumentParser, required: bool) -> None:
    text = options.MODELS
    text += "" if required else "; with it context negatives are the nearest ones, without it random ones"
    parser.add_argument("--model", required=required, help=text)
    options.add_device(parser)
    options.add_decode(parser)
    options.add_batch_size(parser)
    parser.add_argument("--embeddings", type=Path, metavar="DIR",
                        help="folder that keeps embeddings (default: embeddings/ next to the output)")  # fmt: skip


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--k", type=positive, default=1, metavar="N", help="neighbors of each image (default: 1)")
    parser.add_argument("--ceiling", type=float, metavar="S",
                        help="leave out images at least this similar (cosine): likely the same object")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Run the mode; returns the exit status."""
    check_output(args.out, args.dry_run)
    modes = {"triplets": _triplets, "queries": _queries}
    return modes.get(args.mode, _mine)(args)


def _queries(args: argparse.Namespace) -> int:
    from idmetric.data.curate.mine import query_negatives, query_rows
    from idmetric.data.manifest.table import read

    manifest = read(args.manifest)
    rows = query_rows(manifest)
    if not len(rows):
        raise ValueError(f"{args.manifest}: nothing to mine: it has no rows of slot query and positive")
    if args.dry_run:
        print(f"would embed at most {len(rows)} images and texts with {args.model}, and write {args.out}")
        return 0
    text = manifest.column("text")
    vectors, skipped = _embed(manifest, rows, args, {row: text[row] for row in rows.tolist() if text[row]})
    with Progress("queries", not args.quiet, verb="searched") as progress:
        found = query_negatives(
            manifest, vectors, args.k, skip=args.skip, depth=args.depth, seed=args.seed, progress=progress
        )
    if not len(found.manifest):
        raise ValueError(f"no negatives: no data set has more than {args.skip} different targets: lower --skip")
    print(f"{len(found.manifest)} negatives; {len(found.without)} queries found none")
    save(found.manifest, args)
    return 4 if skipped else 0


def _mine(args: argparse.Namespace) -> int:
    import numpy as np

    from idmetric.data.curate import mine
    from idmetric.data.manifest.lineage import lineages
    from idmetric.data.manifest.table import read

    manifest = read(args.manifest)
    refuse_leaks(manifest)
    if args.mode == "negatives":
        pool = mine.pool_rows(manifest, args.roles)
        rows = np.union1d(mine.anchor_rows(manifest, args.roles), pool)
        needs = "rows of known identity and of roles " + ", ".join(args.roles)
    else:
        pools = mine.text_pools(manifest, lineages(manifest))
        rows = np.unique(np.concatenate(pools)) if pools else np.array([], dtype=np.int64)
        needs = "two identities with the same text"
    if not len(rows):
        raise ValueError(f"{args.manifest}: nothing to mine: it has no {needs}")
    if args.dry_run:
        print(f"would embed at most {len(rows)} images with {args.model}, mine {args.mode}, and write {args.out}")
        return 0
    vectors, skipped = _embed(manifest, rows, args)
    with Progress("images", not args.quiet, verb="searched") as progress:
        if args.mode == "negatives":
            found = mine.hard_negatives(
                manifest, vectors, args.k, roles=args.roles, relatives=args.relatives, ceiling=args.ceiling,
                seed=args.seed, progress=progress,
            )  # fmt: skip
        else:
            found = mine.hard_pairs(
                manifest, vectors, args.k, ceiling=args.ceiling, limit=args.limit, progress=progress
            )
    _report(found, args)
    save(found.manifest, args)
    return 4 if skipped else 0


def _embed(
    manifest: Manifest, rows: NDArray[np.integer] | None, args: argparse.Namespace, words: dict[int, str] | None = None
) -> tuple[NDArray[np.float32], bool]:
    """Return embeddings of the rows, and whether images were skipped."""
    from idmetric.data.embed import embed_rows
    from idmetric.models.load import load_embedder

    model = load_embedder(args.model, device=args.device, decode=args.decode)
    store = args.embeddings or args.out.parent / "embeddings"
    with Progress("images", not args.quiet, verb="embedded") as progress:
        found = embed_rows(
            manifest, model, rows, store=store, words=words, batch_size=args.batch_size, progress=progress
        )
    if found.problems:
        names = manifest.column("id")
        take_out({names[r]: reason for r, reason in found.problems.items()}, args.on_error)
    if found.vectors.shape[1] == 0:
        raise ValueError("no image could be read")
    return found.vectors, bool(found.problems)


def _report(found: Mined, args: argparse.Namespace) -> None:
    import numpy as np

    similar = [s for s in found.manifest.column("x_similarity") if s is not None]
    if not similar:
        raise ValueError(f"no {args.mode} found: every other identity is missing, in another split, or above --ceiling")
    low, middle, high = np.quantile(similar, [0, 0.5, 1])
    print(f"{len(similar)} {args.mode}; similarity {low:.3f} to {high:.3f}, median {middle:.3f}")
    if found.without:
        some = ", ".join(found.without[:5]) + (", ..." if len(found.without) > 5 else "")
        say(f"{len(found.without)} images found none: {some}")


def _triplets(args: argparse.Namespace) -> int:
    import numpy as np

    from idmetric.data.curate.triplets import MIXTURES, mixture, parse_ratio
    from idmetric.data.manifest.table import read

    ratio = parse_ratio(args.ratio)
    real = read(args.manifest)
    context = read(args.context) if args.context else real
    identity = read(args.identity) if args.identity else real
    vectors, skipped = None, False
    if args.model and ratio[1] and not args.dry_run:
        vectors, skipped = _embed(context, None, args)
        readable = np.flatnonzero(np.isfinite(vectors).all(axis=1))
        context, vectors = context.take(readable), vectors[readable]
    out = mixture(
        real, context, identity, count=args.count, ratio=ratio, seed=args.seed, per_identity=args.per_identity,
        split=args.split, context_vectors=vectors, originals=args.originals,
    )  # fmt: skip
    kinds = out.column("x_mixture")
    print(", ".join(f"{kinds.count(name) // 3} {name}" for name in MIXTURES) + " triplets")
    save(out, args)
    return 4 if skipped else 0
