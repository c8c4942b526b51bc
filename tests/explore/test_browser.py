"""The page in a real browser: `make browser` installs what is needed; without it, these tests are skipped."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the extra 'browser': make browser")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("no chromium on this machine: make browser installs it", allow_module_level=True)

Page, Browser, expect = sync_api.Page, sync_api.Browser, sync_api.expect
CARDS = ("reads", "path", "cache", "load", "growth", "design")
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
           "--disable-component-update", "--no-first-run"]  # fmt: skip
PATIENCE = 120_000  # milliseconds, on a machine that is busy: no test expects to be fast
DESKTOP = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [sys.executable, "-m", "resolvent", "explore", "exponential+cache", "order:4", "local:4", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with opened(browser, address) as page:
        yield page


class opened:  # noqa: N801  # a context, used as a function
    """The page, drawn; at the end, nothing has gone wrong in it."""

    def __init__(self, browser: Browser, address: str, **options: object) -> None:
        self.context = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce", **options})
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page, self.address, self.errors = self.context.new_page(), address, []

    def __enter__(self) -> Page:
        self.page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(self.address)
        wait_until_drawn(self.page)
        return self.page

    def __exit__(self, *_: object) -> None:
        self.context.close()
        assert self.errors == []


def wait_until_drawn(page: Page) -> None:
    for card in CARDS:
        page.wait_for_selector(f"#{card}[data-drawn]")


def move(page: Page, name: str, value: int) -> None:
    """Move a slider as a person does who uses the keyboard: to its start, and on."""
    slider = page.locator(f"#slider-{name}")
    slider.focus()
    slider.press("Home")
    low = int(slider.get_attribute("min"))
    for _ in range(value - low):
        slider.press("ArrowRight")


def state(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def caption(page: Page, card: str) -> str:
    return page.locator(f"#{card} figcaption").inner_text()


def test_all_figures_are_drawn_and_have_texts_for_those_who_cannot_see_them(page: Page) -> None:
    pictures = page.locator("[role=img]")
    expect(pictures).to_have_count(10)  # four of one pattern, four of growth, two of the budget, which come one by one
    for picture in pictures.all():
        assert len(picture.get_attribute("aria-label")) > 20
    expect(page.locator("#figures tbody tr, #figures tr")).to_have_count(4)
    expect(page.locator("#load figcaption")).to_contain_text("Congestion 11")
    assert "6 slots" in caption(page, "cache")
    for control in page.locator("input, button").all():
        assert control.evaluate(
            "each => each.labels?.length || each.getAttribute('aria-label') || each.textContent.trim()"
        )


def test_length_slider_changes_every_figure_of_the_pattern(page: Page) -> None:
    move(page, "tokens-drawn", 2)  # 32 tokens
    expect(page.locator("#sliders output").first).to_have_text("32")
    expect(page.locator("#reads canvas")).to_have_attribute("aria-label", re.compile("on 32 tokens"))
    expect(page.locator("#load svg")).to_have_attribute("aria-label", re.compile("each of 64 nodes when 32 tokens"))
    expect(page.locator("#cache canvas")).to_have_attribute("aria-label", re.compile("5 cache slots"))
    assert state(page)["n"] == ["32"]


def test_path_hop_by_hop(page: Page) -> None:
    assert "4 hops: 5 → 7 → 23 → 31 → 60" in caption(page, "path")
    assert page.locator("#path path.hop").count() == 4
    page.get_by_role("radio", name="local:4").click()
    expect(page.locator("#path figcaption")).to_contain_text("No path.")
    expect(page.locator("#load figcaption")).to_contain_text("No copy is possible")
    move(page, "from", 58)
    expect(page.locator("#path figcaption")).to_contain_text("1 hop: 58 → 60")
    assert state(page)["from"] == ["58"]


def test_a_click_on_a_read_is_followed_in_all_figures(page: Page) -> None:
    box = page.locator("#reads canvas").bounding_box()
    size = box["width"] / 64
    page.mouse.click(box["x"] + 15.5 * size, box["y"] + 40.5 * size)
    expect(page.locator("#path figcaption")).to_contain_text("1 hop: 15 → 40")
    expect(page.locator("#cache figcaption")).to_contain_text("Token 40 is decoded")
    assert {name: state(page)[name] for name in ("from", "to", "t")} == {"from": ["15"], "to": ["40"], "t": ["40"]}


def test_decoding_is_animated_to_the_last_token_and_can_be_paused(page: Page) -> None:
    move(page, "token", 3)
    expect(page.locator("#cache .slots span")).to_have_count(6)
    page.locator("h1").click()
    page.keyboard.press("Space")
    expect(page.locator("#play")).to_contain_text("Pause")
    # in the page itself: a token is shown for a seventh of a second, and looks from outside may miss it
    page.evaluate("""() => new Promise((paused) => {
      const look = () => {
        if (!/Token 1[2-9] is decoded/.test(document.querySelector("#cache figcaption").textContent)) return;
        observer.disconnect();
        document.getElementById("play").click();
        paused();
      };
      const observer = new MutationObserver(look);
      observer.observe(document.querySelector("#cache figcaption"), { childList: true, subtree: true });
    })""")
    expect(page.locator("#play")).to_contain_text("Decode")
    stopped = state(page)["t"]
    assert 12 <= int(stopped[0]) < 63
    page.locator("#play").click()
    expect(page.locator("#cache figcaption")).to_contain_text("Token 63 is decoded")
    expect(page.locator("#play")).to_contain_text("Decode")


def test_the_address_keeps_the_state(browser: Browser, address: str) -> None:
    query = (
        "?p=quadratic%2Bcache&p=stride%3Ak**3%2B1&focus=1&n=48&from=3&to=40&t=20&long=4096&slots=32&heads=2&theme=dark"
    )
    with opened(browser, address.split("?")[0] + query) as page:
        expect(page.get_by_role("radio", name="stride:k**3+1")).to_have_attribute("aria-checked", "true")
        assert "on 48 tokens" in page.locator("#reads canvas").get_attribute("aria-label")
        assert "Token 20 is decoded" in caption(page, "cache")
        assert "n = 4,096 tokens, 2 heads of 64 channels: slots ≤ 32" in caption(page, "design")
        assert urlsplit(page.url).query == query[1:]
        page.reload()
        wait_until_drawn(page)
        assert urlsplit(page.url).query == query[1:]


def test_an_address_with_nonsense_is_repaired(browser: Browser, address: str) -> None:
    with opened(browser, address.split("?")[0] + "?n=-7&to=1e9&from=x&focus=99&slots=17&theme=pink") as page:
        assert state(page)["n"] == ["64"]
        assert state(page)["slots"] == ["16"]
        assert "1 hop: 5 → 63" in caption(page, "path")


def test_a_bad_pattern_gets_the_words_of_the_library(page: Page) -> None:
    page.locator("#spelling").fill("exponental")
    page.locator("#spelling").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("unknown pattern 'exponental'. Did you mean 'exponential'?")
    page.locator("#spelling").fill("stride:k-<img src=x onerror=alert(1)>")
    page.locator("#spelling").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("<img src=x")
    assert page.locator("#error img").count() == 0
    page.locator("#spelling").fill("local:3/first-order")
    page.locator("#spelling").press("Enter")
    expect(page.get_by_role("radio", name="local:3/first-order")).to_have_attribute("aria-checked", "true")
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator("#cache canvas")).to_have_count(2)  # inputs, for A; outputs, for B


def test_budget_and_what_it_buys(page: Page) -> None:
    first = page.locator("#candidates li").first
    expect(first).to_contain_text("binomial:16,lazy")
    assert page.locator("#design line.budget").count() == 2
    move(page, "budget-slots", 5)  # 8 slots
    expect(first).to_contain_text("8 slots")
    expect(page.locator("#design figcaption")).to_contain_text("slots ≤ 8")
    first.get_by_role("button", name="See it").click()
    expect(page.get_by_role("radio").last).to_have_attribute("aria-checked", "true")
    expect(page.locator("#figures tr")).to_have_count(5)


def test_code_is_copied(page: Page) -> None:
    page.locator("#copy-python").click()
    expect(page.locator("#copy-python")).to_have_text("Copied")
    code = page.evaluate("navigator.clipboard.readText()")
    assert 'print(rv.compare("exponential+cache", "order:4", "local:4", n=1024))' in code
    compile(code, "copied", "exec")
    page.locator("#copy-command").click()
    expect(page.locator("#copy-command")).to_have_text("Copied")
    command = page.evaluate("navigator.clipboard.readText()")
    assert "resolvent analyze exponential+cache --n 64\n" in command
    assert command in page.locator("#code").text_content()


def test_keyboard_alone(page: Page) -> None:
    page.get_by_role("radio", name="exponential+cache").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="order:4")).to_be_focused()
    expect(page.locator("#reads canvas")).to_have_attribute("aria-label", re.compile("order:4"))
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("radio", name="exponential+cache")).to_have_attribute("aria-checked", "true")


@pytest.mark.parametrize("width", [320, 390, 760])
def test_nothing_is_cut_off_on_a_phone(browser: Browser, address: str, width: int) -> None:
    with opened(browser, address, viewport={"width": width, "height": 800}, has_touch=True) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for picture in page.locator("[role=img]").all():
            box = picture.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
        cut = "each => each.getBBox().x + each.getBBox().width > each.ownerSVGElement.viewBox.baseVal.width + 1"
        assert [t.text_content() for t in page.locator("svg[role=img] text").all() if t.evaluate(cut)] == []


def test_an_exported_file_works_alone(browser: Browser, tmp_path: Path) -> None:
    from resolvent.explore.export import export

    file = export(["order:2", "exponential+cache"], 32, tmp_path / "page.html")
    requests: list[str] = []
    with opened(browser, file.as_uri(), offline=True) as page:
        page.on("request", lambda request: requests.append(request.url))
        expect(page.locator("#add")).to_be_hidden()
        page.get_by_role("radio", name="exponential+cache").click()
        expect(page.locator("#reads canvas")).to_have_attribute("aria-label", re.compile(r"exponential\+cache on 32"))
        move(page, "to", 3)
        expect(page.locator("#path figcaption")).to_contain_text("hops")
        page.locator("#play").click()
        expect(page.locator("#cache figcaption")).to_contain_text("Token 31 is decoded")
        assert page.locator(".failed").count() == 0
    assert requests == []
