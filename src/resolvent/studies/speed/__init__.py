"""Speed as records of benchmarks show it: `tables` of a record, `sections` of documents. No torch here."""
