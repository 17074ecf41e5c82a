"""Sparkle: jobs in, tokens out. The public names, loaded only when asked for; knows no torch."""
