"""Studies of language models on text: structures and rules compared by perplexity, cost and length of context."""
