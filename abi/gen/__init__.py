"""Reads the C header and writes everything that is derived from it."""
