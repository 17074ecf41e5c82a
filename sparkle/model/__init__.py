"""The one architecture: dimensions, layers, weights. Knows no requests."""
