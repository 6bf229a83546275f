"""ID-Sim, Figure 6: sensitivity to identity and to context."""
