"""Training losses: arrays in, scalar out, no models.

| module | losses | paper |
|---|---|---|
| `info_nce` | InfoNCE on similarities, query -> target, class labels; a learned temperature | ID-Sim, VisME, ILGen |
| `near_id` | discrimination, ranking, cohesion | NearID |
| `near_id_objectives` | what NearID is compared with | NearID Table 4 |
| `recall_at_k` | recall@k surrogate | ILGen |
| `ilgen_objectives` | what ILGen is compared with | ILGen Table 6 |

Conventions: similarities are higher for images more alike; masks are bool, True = counts; embeddings may have any
length, cosines are taken inside; half precision is computed in float32, float64 stays float64, also in autocast; a
batch in which nothing counts gives 0 with a graph. With several processes, gather embeddings first: each process then
has the whole batch and the same loss.
"""
