"""The `tiny` recipe: the model inside the package."""
