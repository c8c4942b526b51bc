"""The page in one file: everything is inside, and nothing is loaded."""

import json
import re
from pathlib import Path

from resolvent.explore.answers import answer
from resolvent.explore.export import PAGE, bundle, export, page

SCRIPTS = sorted(PAGE.glob("*.js"))


def test_a_file_holds_all_answers(tmp_path: Path) -> None:
    text = export(["order:2", "stride:k**3+1"], 16, tmp_path / "made" / "page.html").read_text(encoding="utf-8")
    content = re.search(r'<script type="application/json" id="embedded">(.*?)</script>', text, re.DOTALL)
    assert content is not None
    data = json.loads(content[1])
    assert data["state"]["p"] == ["order:2", "stride:k**3+1"]
    question = {"p": "stride:k**3+1", "n": "16"}
    assert data["answers"]["scene?p=stride%3Ak**3%2B1&n=16"] == json.loads(json.dumps(answer("scene", question)))
    assert not re.search(r"(src|href)=\"/|@import|url\(", text)
    assert "\nimport " not in text
    assert "\nexport " not in text


def test_data_cannot_end_its_script() -> None:
    assert page('"</script>"').count("</script>") == page('""').count("</script>")


def test_scripts_are_joined_in_the_order_in_which_they_need_each_other() -> None:
    joined = bundle("main.js")
    modules = re.findall(r"^const module_(\w+) = \(\(\) => \{$", joined, re.MULTILINE)
    assert sorted(f"{name}.js" for name in modules) == [script.name for script in SCRIPTS]
    for script in SCRIPTS:
        for needed in re.findall(r'from "\./(\w+)\.js"', script.read_text(encoding="utf-8")):
            assert modules.index(needed) < modules.index(script.stem)
    assert modules[-1] == "main"


def test_scripts_are_small_and_ask_the_library() -> None:
    for script in SCRIPTS:
        text = script.read_text(encoding="utf-8")
        assert len(text.splitlines()) < 300, script.name
        assert "eval(" not in text
        assert "innerHTML" not in text, "text of strangers is never markup"
