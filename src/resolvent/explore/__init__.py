"""A page on which one sees patterns: `resolvent explore` serves it, or writes it to a file. Never imports torch.

`answers` asks the library, `worker` does so in a process with limits, `server` listens on this machine alone, `export`
puts page and answers into one file; `page/` is what the browser gets. Starlette and uvicorn are imported when served.
"""
