"""A page on which one sees patterns: `resolvent explore` serves it, or writes it to a file. Never imports torch.

`answers` asks the library, `server` listens on this machine alone, `export` puts page and answers into one file, and
`page/` is what the browser gets.
"""
