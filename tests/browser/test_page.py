"""The report's page in headless Chromium, from a file: what a reader sees, and what it must never do.

`SCOREMODE_SHOTS=DIR` keeps screenshots of it, to be looked at.
"""

import os
from pathlib import Path

import pytest
from support.report_data import FIGURES, report_data

from scoremode.report.page.document import page as made_page


@pytest.fixture(scope="module")
def six() -> str:
    return made_page(report_data(6))


def shot(page, name: str) -> None:
    if folder := os.environ.get("SCOREMODE_SHOTS"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def column(page, place: int) -> list[str]:
    rows = page.locator("#s0-ranking tbody tr")
    return [rows.nth(i).locator("td, th").nth(place).inner_text() for i in range(rows.count())]


@pytest.mark.parametrize(
    ("count", "options"), [(1, {}), (2, {}), (20, {"long": True}), (7, {"sections": 2})]
)
def test_all_charts_are_drawn_without_a_word_or_a_request(opened, count, options):
    page = opened(made_page(report_data(count, **options)))
    charts = page.locator(".chart")
    assert charts.count() == len(FIGURES) * options.get("sections", 1)
    assert page.locator(".chart svg[role=img] .mark-symbol path").count() > charts.count() * count
    assert page.evaluate("document.documentElement.scrollWidth") <= 1240
    shot(page, f"desktop-{count}")


def test_the_policy_stops_scripts_and_requests_that_are_not_the_pages(browser, six, tmp_path):
    evil = six.replace("</header>", "</header><script>window.evil = 1</script>")
    assert evil != six
    (tmp_path / "evil.html").write_text(evil, encoding="utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "evil.html").as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached")
    assert page.evaluate("window.evil") is None
    failed = "fetch('https://127.0.0.1:9/x').then(() => 'sent', error => String(error))"
    assert "TypeError" in page.evaluate(failed)
    page.close()


def test_a_table_is_sorted_by_click_and_by_key(opened, six):
    page = opened(six)
    head = page.locator("#s0-ranking thead th").nth(3)
    start = column(page, 3)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    rising = column(page, 3)
    sizes = [float(v.split()[0]) * (1024 if "GiB" in v else 1) for v in rising]
    assert sizes == sorted(sizes) and sorted(rising) == sorted(start)
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending" and column(page, 3) == rising[::-1]
    # The base has no KLD: it stands last both ways.
    kld = page.locator("#s0-ranking thead th").nth(2)
    for _ in range(2):
        kld.locator("button").click()
        assert "base" in column(page, 1)[-1]
    assert head.get_attribute("aria-sort") is None


def test_a_mark_under_the_mouse_tells_its_numbers_and_stands_out(opened, six):
    page = opened(six)
    report = report_data(6)
    best = report["sections"][0]["runs"][0]
    chart = page.locator("#s0-kld")
    chart.scroll_into_view_if_needed()
    tip = page.locator("#tip")
    found = False
    for i in range(chart.locator(".mark-symbol path").count()):
        chart.locator(".mark-symbol path").nth(i).hover(force=True)
        page.wait_for_timeout(60)
        if tip.is_visible() and best["name"] in tip.inner_text():
            found = True
            break
    assert found
    assert f"{best['kld']['value']:.3g}" in tip.inner_text()
    assert f"{best['bits_file']:.3f}" in tip.inner_text()
    assert page.locator("#s0-ranking tr.lit").count() == 1
    # Each of a line's points tells its own.
    tail = page.locator("#s0-tail")
    tail.scroll_into_view_if_needed()
    marks = tail.locator(".mark-symbol.role-mark").last.locator("path")
    marks.nth(marks.count() // 2).hover(force=True)
    page.wait_for_timeout(60)
    assert "share of tokens above it" in tip.inner_text()
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_a_run_is_kept_by_a_click_on_its_name(opened, six):
    page = opened(six)
    name = page.locator(".legend button").nth(2)
    name.click()
    page.mouse.move(1, 1)
    page.wait_for_timeout(100)
    assert name.get_attribute("aria-pressed") == "true"
    faint = page.locator("#s0-kld .mark-symbol path[opacity='0.13']")
    assert faint.count() == 5
    name.click()
    page.wait_for_timeout(100)
    page.mouse.move(1, 1)
    page.wait_for_timeout(100)
    assert faint.count() == 0


def test_sizes_are_chosen(opened, six):
    page = opened(six)
    assert "bits/weight, file" in page.locator("#s0-kld svg").text_content()
    page.locator("fieldset[data-for='s0-kld'] label").nth(2).click()
    page.wait_for_timeout(400)
    assert "size of the files" in page.locator("#s0-kld svg").text_content()


def test_both_themes(opened, six):
    def colours(page):
        take = "getComputedStyle(document.body).backgroundColor"
        ink = "getComputedStyle(document.querySelector('.chart .role-axis-title text')).fill"
        return page.evaluate(f"[{take}, {ink}]")

    dark = opened(six, color_scheme="dark")
    light = opened(six, color_scheme="light")
    assert colours(dark) == ["rgb(20, 23, 26)", "rgb(227, 230, 232)"]
    assert colours(light) == ["rgb(255, 255, 255)", "rgb(27, 31, 35)"]
    shot(dark, "dark")
    button = dark.locator("#theme")
    assert button.inner_text() == "theme: auto"
    button.click()
    assert button.inner_text() == "theme: light" and colours(dark) == colours(light)
    button.click()
    assert button.inner_text() == "theme: dark" and colours(dark)[0] == "rgb(20, 23, 26)"


@pytest.mark.parametrize("count", [1, 6, 20])
def test_a_phone_scrolls_tables_in_their_boxes_alone(opened, count):
    page = opened(
        made_page(report_data(count, long=True)), width=390, is_mobile=True, has_touch=True
    )
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    box = page.locator("#s0-ranking").locator("..")
    assert box.evaluate("e => e.scrollWidth > e.clientWidth") is True
    shot(page, f"phone-{count}")


def test_what_a_token_holds_is_text_and_is_seen(opened):
    token = "<script>window.evil=1</script><img src=x onerror=window.evil=1>\u202e\u2028\x00</td>"
    page = opened(made_page(report_data(3, token=token)))
    assert page.evaluate("window.evil") is None
    assert page.locator("main img, main script").count() == 0
    shown = page.locator("#s0-worst .target").first.inner_text()
    assert shown == token.replace("\u202e", "\\u202e").replace("\u2028", "\\u2028").replace(
        "\x00", "\\x00"
    )


def test_tables_are_copied_as_they_are_sorted(opened, six):
    page = opened(six, permissions=["clipboard-read", "clipboard-write"])
    page.locator("button[data-copy=markdown]").first.click()
    page.wait_for_timeout(200)
    lines = page.evaluate("navigator.clipboard.readText()").strip().split("\n")
    assert len(lines) == 2 + 7 and lines[1].startswith("| --- | ---: |")
    assert "[" in lines[3] and "\\[" not in lines[3]
    page.locator("button[data-copy=csv]").first.click()
    page.wait_for_timeout(200)
    assert page.evaluate("navigator.clipboard.readText()").count("\n") == 1 + 7


def test_it_prints(opened, six, tmp_path):
    page = opened(six, color_scheme="dark")
    page.pdf(path=str(tmp_path / "report.pdf"), prefer_css_page_size=True)
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    page.emulate_media(media="print", color_scheme="dark")
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colour == "rgb(255, 255, 255)"
    assert page.locator("#theme").is_hidden()


def test_tables_are_there_without_a_script(browser, six, tmp_path):
    (tmp_path / "plain.html").write_text(six, encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "plain.html").as_uri())
    assert page.locator("#s0-ranking tbody tr").count() == 7
    assert page.locator("#theme").is_hidden()
    context.close()
