"""How fast the page is, in a real browser: `python -m tests.explore.pace [N]` prints first paint and every interaction.

Of an interaction two times are measured, in milliseconds from the event: until something on the page has changed and
is painted, and until the card in question is complete. A machine that does other work gives other numbers, so this is
no test.
"""

import subprocess
import sys

from tests.explore.test_browser import CHROMIUM, OPTIONS, sync_api, wait_until_drawn

TIMED = """
async ([card, action]) => {
  const target = document.getElementById(card), before = target.dataset.drawn;
  const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const start = performance.now();
  const changed = new Promise((done) => {
    const observer = new MutationObserver(() => {
      observer.disconnect();
      painted().then(() => done(performance.now() - start));
    });
    observer.observe(document.body, { childList: true, subtree: true, characterData: true, attributes: true });
  });
  new Function(action)();
  const first = await changed;
  while (target.dataset.drawn === before) await new Promise((again) => setTimeout(again, 2));
  await painted();
  return [first, performance.now() - start];
}
"""


def slide(name: str, step: int) -> str:
    """JavaScript that moves a slider by so many steps."""
    return (
        f"const slider = document.getElementById('slider-{name}'); slider.value = Number(slider.value) + ({step}); "
        "slider.dispatchEvent(new Event('input', { bubbles: true }));"
    )


def click(selector: str) -> str:
    return f"document.querySelector({selector!r}).click();"


ADD = "document.getElementById('spelling').value = 'binomial:12,lazy'; document.getElementById('add').requestSubmit();"
INTERACTIONS = [
    ("another pattern in focus", "load", click("#chips .chip:nth-child(3) .name")),
    ("first pattern again", "reads", click("#chips .chip:nth-child(1) .name")),
    ("fewer tokens", "load", slide("tokens-drawn", -1)),
    ("more tokens", "cache", slide("tokens-drawn", 1)),
    ("path, from", "path", slide("from", 7)),
    ("path, to", "path", slide("to", -9)),
    ("token that is decoded", "cache", slide("token", 5)),
    ("size of a pattern: focus", "load", click("#chips .chip:nth-child(2) .name")),
    ("size of a pattern: figures", "load", slide("order", 1)),
    ("size of a pattern: curves", "growth", slide("order", 1)),
    ("add a pattern: figures", "cache", ADD),
    ("remove a pattern: curves", "growth", click("#chips .chip:last-child .remove")),
    ("length of the table", "growth", slide("tokens", 1)),
    ("length of the table: a million", "growth", slide("tokens", 20)),
    ("length of the table: 1k", "growth", slide("tokens", -10)),
    ("budget", "design", slide("budget-slots", 1)),
    ("budget, back", "design", slide("budget-slots", -1)),
    ("heads", "design", slide("heads", 2)),
    ("length of the budget: 128k", "design", slide("tokens", 7)),
    ("budget at 128k", "design", slide("budget-slots", 2)),
    ("while it is searched: path, from", "path", slide("from", -3)),
    ("dark mode", "growth", click("#theme")),
]


def main(n: int) -> None:
    """Print a line for each."""
    patterns = ["exponential+cache", "order:8", "quadratic+cache", "first-order", "attention"]
    command = [sys.executable, "-m", "resolvent", "explore", *patterns, "--n", str(n), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, sync_api.sync_playwright() as tool:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        browser = tool.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        page = browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
        for name in ("first visit", "second visit"):
            page.goto(address)
            page.wait_for_selector("#reads[data-drawn]")
            reads = page.evaluate("performance.now()")
            wait_until_drawn(page)
            paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            complete = page.evaluate("performance.now()")
            print(f"{name}: first paint {paint:.0f} ms, first figure {reads:.0f}, all {complete:.0f}", flush=True)
        page.wait_for_timeout(4000)  # the other processes are loaded by then
        print(f"{'':36}{'changed':>10}{'complete':>10}")
        for name, card, action in INTERACTIONS:
            waits = not name.startswith("budget at")
            first, complete = page.evaluate(
                TIMED if waits else TIMED.replace("while (", "while (false && "), [card, action]
            )
            print(f"{name:36}{first:10.0f}{complete if waits else float('nan'):10.0f}", flush=True)
            page.wait_for_timeout(300 if waits else 200)
        browser.close()
        process.terminate()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1024)
