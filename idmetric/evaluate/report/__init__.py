"""Plots of what protocols return."""
