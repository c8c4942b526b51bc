"""Studies: one file per table or figure of the paper; what is run, and how it is graded."""
