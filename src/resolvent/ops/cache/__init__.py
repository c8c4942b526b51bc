"""Decode caches: slots given by the pattern, states of scans, and several of them as one."""
