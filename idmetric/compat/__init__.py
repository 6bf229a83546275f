"""This package's metrics behind the interfaces of other measures, for code that is written for these.

    import idmetric.compat.lpips as lpips
    from idmetric.compat.dreamsim import dreamsim

Each module names the metric that computes the distances: none is chosen silently, and none of the values is that of the
original. See docs/coming-from.md.
"""
