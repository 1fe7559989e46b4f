"""The report's page in a real browser: the item view renders, deep links work, model
output stays text."""

import functools
import html
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from evaluator.report import write_report
from evaluator.report.card import write_sign_off
from tests.support.synthetic import HOSTILE, write_run

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no chromium, chromium-browser or google-chrome here"
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
    *("--no-first-run", "--disable-background-networking", "--disable-sync"),
    *("--disable-component-update", "--virtual-time-budget=20000"),
    *("--window-size=1280,900", "--dump-dom"),
)
LONG = (
    "smollm2-magnitude-0.3-2:4",
    "meta-llama-3.1-8b-instruct-sparsegpt-0.55-owl-c4",
    "x" * 90,
)


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    run = write_run(
        tmp_path_factory.mktemp("run"),
        10,
        ("dense", "wanda-0.6", "magnitude-0.6"),
        languages=("english", "korean"),
    )
    (part,) = run.glob("records/wanda-0.6-gazetteer/part-000000*.parquet")
    rows = pq.read_table(part).to_pandas()
    said = (rows["item_id"] == "english-0003") & (rows["probe"] == "greedy")
    rows.loc[said, ["text", "contains", "exact_match"]] = [HOSTILE, False, False]
    read = (rows["item_id"] == "english-0004") & (rows["probe"] == "greedy")
    rows.loc[read, ["text", "option_text"]] = ["Of 172 and 72, <b>72</b>.", "72"]
    pq.write_table(
        pq.read_schema(part).empty_table().from_pandas(rows, preserve_index=False), part
    )
    return write_report(run).page


@pytest.fixture(scope="module")
def opened(page, tmp_path_factory):
    return functools.cache(
        lambda fragment="", *flags: dom_of(
            page.as_uri() + fragment, tmp_path_factory.mktemp("profile"), *flags
        )
    )


def dom_of(address: str, profile: Path, *flags: str) -> str:
    command = [str(BROWSER), *FLAGS, *flags, f"--user-data-dir={profile}", address]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def article(dom: str) -> str:
    return dom.split('<article id="item"')[1].split("</article>")[0]


def text_of(markup: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", markup))


def test_item_view_opens_on_loss(opened):
    """In the reader's language."""
    dom = opened()
    item = article(dom)
    assert 'class="fate picked_only"' in item
    names = ("dense", "wanda-0.6", "magnitude-0.6")
    headings = (
        "greedy output",
        "picked: gold's share",
        "aligned rank",
        "beams",
        "samples",
    )
    for heading in (*names, *headings):
        assert heading in text_of(item)
    assert re.search(r"<p id=\"count\"[^>]*>\d+ of 20 items", dom)
    dom = opened("#ladder", "--accept-lang=ko-KR")
    assert "korean-" in article(dom)
    assert re.search(r'<p id="count"[^>]*>[1-9] of 20 items', dom)
    sections = re.findall(r'<section id="(\w+)">\s*<details( open)?', dom)
    assert [name for name, mark in sections if mark] == ["ladder"]
    assert ("rank", "") in sections


def test_item_view_marks_what_the_grader_read(opened):
    """Its last place that stands by itself."""
    item = article(opened("#item=gazetteer/english/english-0004&checkpoint=wanda-0.6"))
    assert "Of 172 and 72, &lt;b&gt;<mark>72</mark>&lt;/b&gt;." in item
    assert "read 72" in text_of(item)


def test_a_heading_sorts_the_headline(page, tmp_path):
    """A second click turns the order round; missing values stay last."""
    text = re.sub(r'<meta http-equiv="Content-Security[^>]*>', "", page.read_text())
    for clicks, order in ((1, 1), (2, -1)):
        click = "document.querySelectorAll('#headline .sort')[2].click();" * clicks
        sorted_page = tmp_path / f"{clicks}.html"
        sorted_page.write_text(
            text.replace("</body>", f"<script>{click}</script></body>")
        )
        dom = dom_of(sorted_page.as_uri(), tmp_path / "profile")
        headline = dom.split('<section id="headline"')[1].split("</table>")[0]
        assert f'aria-sort="{"descending" if order == 1 else "ascending"}"' in headline
        values = re.findall(
            r'<tr>(?:<td[^>]*>.*?</td>){2}<td[^>]*data-value="([^"]*)"', headline
        )
        numbers = [float(each) for each in values]
        assert numbers == sorted(numbers, reverse=order == 1)
        assert len(set(numbers)) > 1


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("", "Headline"),
        ("#fates", "Fates"),
        ("#q=korean-0004", "Items"),
        ("#ladder", "More analyses"),
    ],
)
def test_navigation_follows_reader(opened, address, here):
    nav = opened(address).split("<nav")[1].split("</nav>")[0]
    assert re.findall(r'aria-current="true">([^<]+)<', nav) == [here]


def test_deep_links_and_search(opened):
    dom = opened(
        "#item=gazetteer/korean/korean-0005&checkpoint=magnitude-0.6&language=korean"
    )
    item = text_of(article(dom))
    assert "korean-0005" in item
    assert "Mount Seran" not in item
    assert "10 of 20 items" in dom
    assert re.search(
        r'<tr class="selected"><td class="name"><button'
        r' type="button"[^>]*>magnitude-0.6',
        article(dom),
    )
    dom = opened("#q=korean-0004")
    assert "1 of 20 items" in dom
    assert "korean-0004" in text_of(article(dom))
    dom = opened("#checkpoint=magnitude-0.6&fate=kept")
    count = int(re.search(r'id="count"[^>]*>(\d+) of', dom).group(1))
    strips = re.findall(r'<i class="(\w*) here"', dom)
    assert count == len(strips) > 0
    assert set(strips) == {"kept"}


def test_model_output_stays_text(opened):
    dom = opened("#item=gazetteer/english/english-0003&checkpoint=wanda-0.6")
    assert "owned" not in re.search(r"<title>(.*?)</title>", dom).group(1)
    item = article(dom)
    assert "<script" not in item
    assert "<img" not in item
    hostile = "&lt;/script&gt;&lt;script&gt;document.title='owned'&lt;/script&gt;"
    assert hostile in item
    _, *led = item.split("first token of the answer, after the base's words before it")
    assert len(led) == 2  # of the base and of the chosen checkpoint
    assert all(hostile in each for each in led)  # a lead-in is as untrusted


@pytest.mark.parametrize(  # known: a few, shown as counts; many, as percentages
    ("tasks", "per_language"),
    [
        (("gazetteer", "tydiqa-passages-of-a-long-name"), 6),
        pytest.param(("gazetteer",), 40, marks=pytest.mark.more),
    ],
)
def test_headline_fits_the_page(tmp_path, tasks, per_language):
    """Also with long names, nothing scrolls sideways. On 600 pixels tables scroll in
    boxes of their own."""
    run = write_run(
        tmp_path / "run",
        per_language,
        ("dense", *LONG),
        languages=("english", "korean"),
        tasks=tasks,
    )
    page = write_report(run).page
    window, whole, hidden = sizes_of(page, tmp_path)
    assert (window, hidden) == (1280, 0)
    assert whole <= 1280
    window, whole, _ = sizes_of(page, tmp_path, "--window-size=600,900")
    assert window == 600
    assert whole <= 600


def sizes_of(page: Path, folder: Path, *flags: str) -> tuple[int, ...]:
    """The widths of the window and of what it shows, and how much of the headline
    its box hides."""
    script = """
      document.querySelectorAll("#list .q").forEach((q) => { q.textContent = "Who asks at such length? ".repeat(9); });
      const box = document.querySelector("#headline .scroll"), root = document.documentElement;
      return [innerWidth, root.scrollWidth, box.scrollWidth - box.clientWidth].join();"""
    return tuple(map(int, measured(page, folder, script, *flags).split(",")))


def measured(page: Path, folder: Path, script: str, *flags: str) -> str:
    markup = re.sub(
        r'<meta http-equiv="Content-Security-Policy"[^>]*>',
        "",
        page.read_text(encoding="utf-8"),
    )
    run = "setTimeout(async () => { document.body.dataset.told = await told(); }, 1000)"
    run = f'window.addEventListener("load", () => {run})'
    ours = folder / "measured.html"
    added = f"<script>const told = () => {{{script}}}; {run}</script></body>"
    ours.write_text(markup.replace("</body>", added), encoding="utf-8")
    found = re.search(
        r'data-told="([^"]*)"', dom_of(ours.as_uri(), folder / "profile", *flags)
    )
    assert found is not None
    return html.unescape(found[1])


def axe() -> str:
    """The script of axe-core, out of the test dependency; skips where it is not
    installed."""
    package = importlib.util.find_spec("axe_core_python")
    if package is None:
        pytest.skip("axe-core-python is not installed")
    return (Path(package.submodule_search_locations[0]) / "axe.min.js").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark")])
def test_axe_finds_nothing(page, tmp_path, width, scheme):
    """With all sections open: names of regions, contrast, scrolling by keyboard,
    landmarks, and axe's other rules."""
    shown = tmp_path / "page.html"
    markup = page.read_text(encoding="utf-8")
    if scheme == "dark":
        markup = markup.replace(
            "@media screen and (prefers-color-scheme: dark)", "@media screen"
        )
    shown.write_text(
        markup.replace("</body>", f"<script>{axe()}</script></body>"), encoding="utf-8"
    )
    script = """
      document.querySelectorAll("details").forEach((each) => { each.open = true; });
      return axe.run(document, { resultTypes: ["violations"] }).then(({ passes, violations }) =>
        [passes.length > 20, ...violations.flatMap(({ id, nodes }) =>
          nodes.map(({ html }) => `${id}: ${html}`))].join());"""
    assert measured(shown, tmp_path, script, f"--window-size={width},900") == "true"


def test_keyboard_keeps_its_place(page, tmp_path):
    """After Next, Previous and a checkpoint's name the focus is on the same button.
    Single keys act on the item alone, and not at all once they are switched off; a
    search without a match says so."""
    script = """
      const wait = () => new Promise((done) => setTimeout(done, 300));
      const place = () => document.activeElement.textContent || document.activeElement.tagName;
      const shownItem = () => document.querySelector("#item code")?.textContent;
      const button = (text) => [...document.querySelectorAll("#item button")].find((each) => each.textContent === text);
      const key = (name, target) => target.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
      const type = async (id, value) => {
        document.getElementById(id).value = value;
        document.getElementById(id).dispatchEvent(new Event("input", { bubbles: true }));
        await wait();
      };
      return (async () => {
        const told = [];
        document.getElementById("items").scrollIntoView();
        await type("filter-fate", "");
        for (const name of ["Next", "Next", "Previous", "magnitude-0.6"]) {
          button(name).focus();
          button(name).click();
          await wait();
          told.push(place());
        }
        const moves = async (target) => {
          const before = shownItem();
          key("ArrowRight", target);
          await wait();
          return shownItem() !== before;
        };
        told.push(await moves(document.body), await moves(document.querySelector("#item .scroll")));
        document.getElementById("keys").click();
        told.push(await moves(document.body), document.querySelector("#item").hasAttribute("aria-live"));
        await type("filter-text", "no such text");
        told.push(document.getElementById("item").textContent, document.getElementById("count").textContent);
        await type("filter-more", "no such word");
        told.push(document.getElementById("none").textContent);
        return told.join("|");
      })();"""
    assert measured(page, tmp_path, script).split("|") == [
        *("Next", "Next", "Previous", "magnitude-0.6"),
        *("true", "false", "false", "false"),
        *(
            "No item passes the filters.",
            "0 of 20 items",
            "No analysis has these words.",
        ),
    ]


def test_page_to_sign_fits_on_one_sheet(tmp_path):
    names = ("dense", "wanda-0.6", "magnitude-0.6")
    run = write_run(tmp_path / "run", 10, names, languages=("english", "korean"))
    page, printed = write_sign_off(run, write_report(run).results), tmp_path / "s.pdf"
    flags = [flag for flag in FLAGS if flag != "--dump-dom"]
    flags += [f"--print-to-pdf={printed}", f"--user-data-dir={tmp_path / 'profile'}"]
    subprocess.run(
        [str(BROWSER), *flags, page.as_uri()], check=True, capture_output=True
    )
    assert len(re.findall(rb"/Type\s*/Page[^s]", printed.read_bytes())) == 1
