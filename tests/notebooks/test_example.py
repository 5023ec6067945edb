"""examples/quickstart.ipynb runs, shows what its saved outputs show, and looks right in a browser, light and dark."""

import re

import pytest

pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")

import nbformat

from tests.notebooks.kernel import execute, shown
from tests.packaging.wheels import ROOT
from tests.tensorboard.server import browser, page

NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


def kinds(outputs):
    return {
        name: [(output.output_type, sorted(output.get("data", {}))) for output in of] for name, of in outputs.items()
    }


def saved():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    return {str(number): cell.get("outputs", []) for number, cell in enumerate(cells)}


def test_the_notebook_runs_and_shows_what_was_saved_with_it(tmp_path):
    outputs = execute(nbformat.read(NOTEBOOK, as_version=4), tmp_path)
    assert kinds(outputs) == kinds(saved())
    tables = [shown(output) for of in outputs.values() for output in of if "text/html" in output.get("data", {})]
    assert tables[0].text.startswith("logdict 2 keys")
    assert tables[1].text.startswith("logdict 2 keys · 8 lanes")
    assert "20000/20000 (100%)" in tables[2].text
    assert "8 runs step 2980, 1200 records" in tables[3].text
    assert len(tables[4].rows(1)) == 16
    assert "sqrt" in tables[5].text


def test_the_saved_outputs_are_whole():
    outputs = [output for of in saved().values() for output in of]
    assert [output.output_type for output in outputs].count("display_data") == 2
    assert {output.output_type for output in outputs} == {"display_data", "execute_result"}
    for output in outputs:
        if "text/html" in output.data:
            assert "/tmp/" not in shown(output).text
    assert NOTEBOOK.stat().st_size < 500_000


@pytest.mark.skipif(browser() is None, reason="needs chromium and its driver")
def test_in_a_browser_text_and_curves_can_be_seen_on_light_and_dark_pages(tmp_path):
    """As JupyterLab shows it, with its own style sheet."""
    nbconvert = pytest.importorskip("nbconvert")
    with page("about:blank") as driver:
        for theme in ("light", "dark"):
            html, _ = nbconvert.HTMLExporter(theme=theme).from_filename(str(NOTEBOOK))
            html = re.sub(r"<script[^>]*src=.*?</script>", "", html, flags=re.DOTALL)  # formulas; no network here
            (tmp_path / f"{theme}.html").write_text(html)
            driver.get(f"file://{tmp_path}/{theme}.html")
            background = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
            assert (brightness(background) < 128) == (theme == "dark")
            check(driver.execute_script(LOOK), background)


def check(blocks, background):
    """Text stands out from the page, and each curve has a size and is within its table."""
    assert len(blocks) == 6
    for block in blocks:
        assert abs(brightness(block["text"]) - brightness(background)) > 100
        assert block["inside"] == block["pictures"]
    assert sum(block["pictures"] for block in blocks) > 40


LOOK = """
return [...document.querySelectorAll('div.lox')].map(block => {
  const around = block.getBoundingClientRect(), pictures = [...block.querySelectorAll('svg')];
  const inside = pictures.filter(svg => {
    const box = svg.getBoundingClientRect();
    return box.width > 50 && box.height >= 10 && box.top >= around.top && box.bottom <= around.bottom + 1;
  });
  const cell = block.querySelector('td');
  return {text: getComputedStyle(cell).color, pictures: pictures.length, inside: inside.length};
})
"""


def brightness(colour):
    red, green, blue, *_ = map(float, re.findall(r"[\d.]+", colour))
    return 0.3 * red + 0.6 * green + 0.1 * blue
