"""Statistics: arrays in, numbers out.

Functions raise a ValueError that names the argument for wrong shapes, values that are not finite, and data that leave a
statistic undefined.
"""
