"""Decode caches: slots given by the pattern, states of scans, several of them as one, and files of them."""
