"""Studies: each table or figure of the paper with what is run, its table, claims and figures. All are in `registry`."""
