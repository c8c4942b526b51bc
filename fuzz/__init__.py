"""Random cases against independent oracles: `python -m fuzz`. A tool for developers, which is not installed."""
