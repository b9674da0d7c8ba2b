"""Pictures of every page, light and dark, wide and narrow.

python -m tests.ui.screenshots [FOLDER]        default docs/screens
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import ViewportSize, sync_playwright

from tests.ui.scene import Scene

CHROMIUM = "/usr/bin/chromium"
PAGES = {
    "overview": "/ui",
    "transactions": "/ui/transactions",
    "transaction": "/ui/transactions/nightly-import",
    "ended": "/ui/transactions/checkout-1",
    "topics": "/ui/topics",
    "topic": "/ui/topics/orders",
    "produce": "/ui/topics/orders/produce",
    "replicas": "/ui/topics/orders/replicas?brokers=1",
    "messages": "/ui/topics/orders/0?isolation=everything&offset=85",
    "producers": "/ui/producers?topic=orders",
    "groups": "/ui/groups",
    "group": "/ui/groups/billing",
    "reset": "/ui/groups/billing/reset?to=earliest",
    "brokers": "/ui/brokers",
    "settings": "/ui/settings",
    "playground": "/ui/http?method=POST&path=/v1/topics/orders/records&template=/v1/topics/{topic}/records",
}
SIZES = {"wide": (1280, 800), "narrow": (390, 844)}


def viewport(size: str) -> ViewportSize:
    width, height = SIZES[size]
    return {"width": width, "height": height}


def take(url: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            for size in SIZES:
                context = browser.new_context(
                    color_scheme="dark" if scheme == "dark" else "light", viewport=viewport(size)
                )
                page = context.new_page()
                for name, path in PAGES.items():
                    page.goto(url + path)
                    page.wait_for_selector("h1")
                    if name == "overview":
                        time.sleep(4.5)
                    page.screenshot(path=folder / f"{name}-{scheme}-{size}.png")
                context.close()
        browser.close()


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/screens")
    home = Path(tempfile.mkdtemp())
    scene = Scene(home / "data")
    try:
        take(scene.url, target)
    finally:
        scene.close()
        shutil.rmtree(home)
