"""The same cases in this tree and in that of another commit, compared to the bit: `make against REF=<commit>`."""
